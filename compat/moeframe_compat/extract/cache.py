"""Snapshots of several releases at once: large ones in parallel, git and index baselines from a cache by content."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from moeframe_compat.errors import ExtractionError
from moeframe_compat.extract.package import Extraction, read_package
from moeframe_compat.extract.trees import Spec, Tree, read_tree
from moeframe_compat.model.snapshot import SCHEMA, Snapshot, Sources, from_content, load_snapshot

PARALLEL = 400_000
"""Bytes of source of the smaller release from which a second process pays."""
_KEEP = 8


def cached_snapshots(specs: list[Spec], how: Extraction) -> list[Snapshot]:
    """The snapshot of each SPEC.

    Raises:
        ExtractionError: One of them cannot be read.
    """
    trees: list[Tree | Snapshot] = []
    for spec in specs:
        if spec.kind == "snapshot":
            found = load_snapshot(Path(spec.value), spec.label)
            if found.package != how.package:
                raise ExtractionError(f"snapshot {spec.label}: of package {found.package!r}, not {how.package!r}")
            trees.append(found)
        else:
            trees.append(
                read_tree(spec, how.package, distribution=how.distribution, root=how.root, recipes=how.recipes)
            )
    pending = {i: t for i, t in enumerate(trees) if isinstance(t, Tree)}
    keys = {i: _key(t, how) for i, t in pending.items()}
    done: dict[int, Snapshot] = {i: t for i, t in enumerate(trees) if isinstance(t, Snapshot)}
    for i, tree in list(pending.items()):
        known = _load(keys[i], tree)
        if known is not None:
            done[i] = known
            del pending[i]
    done |= _read_all(pending, how)
    for i in pending:
        _store(keys[i], done[i])
    return [done[i] for i in range(len(specs))]


def _read_all(trees: dict[int, Tree], how: Extraction) -> dict[int, Snapshot]:
    import multiprocessing

    sizes = [sum(len(b) for n, b in t.files.items() if n.endswith(".py")) for t in trees.values()]
    if (
        len(trees) < 2
        or min(sizes) < PARALLEL
        or (os.cpu_count() or 1) < 2
        or "fork" not in multiprocessing.get_all_start_methods()
    ):
        return {i: read_package(t, how) for i, t in trees.items()}
    import pickle

    (first, tree), *others = trees.items()
    receiving, sending = multiprocessing.get_context("fork").Pipe(duplex=False)
    worker = multiprocessing.get_context("fork").Process(target=_work, args=(sending, tree, how), daemon=True)
    worker.start()
    sending.close()
    out = {i: read_package(t, how) for i, t in others}
    try:
        answer = pickle.loads(receiving.recv_bytes())  # noqa: S301 - from our own child
    except EOFError:
        raise ExtractionError(
            f"{tree.label}: the reading process died (exit {worker.exitcode}); is memory short?"
        ) from None
    worker.join()
    if isinstance(answer, ExtractionError):
        raise answer
    answer.sources = Sources({n: t for n, t in _texts(tree).items() if n.endswith(".py")})
    out[first] = answer
    return out


def _work(sending, tree: Tree, how: Extraction) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    try:
        made: Snapshot | ExtractionError = read_package(tree, how)
        if isinstance(made, Snapshot):
            made.sources = None
    except ExtractionError as e:
        made = e
    import pickle

    sending.send_bytes(pickle.dumps(made, protocol=pickle.HIGHEST_PROTOCOL))
    sending.close()


def _texts(tree: Tree) -> dict[str, str]:
    return {n: b.decode("utf-8", errors="replace") for n, b in tree.files.items()}


def _folder() -> Path | None:
    """Where snapshots are kept; `MOEFRAME_COMPAT_CACHE=off` turns the cache off."""
    named = os.environ.get("MOEFRAME_COMPAT_CACHE", "")
    if named == "off":
        return None
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "moeframe-compat"


def _key(tree: Tree, how: Extraction) -> str:
    from moeframe_compat import __version__

    state = hashlib.sha256(
        f"{SCHEMA}\0{__version__}\0{_code_state()}\0{how.package}\0{how.exclude}\0{tree.prefix}".encode()
    )
    for name in sorted(tree.files):
        state.update(f"\0{name}\0{len(tree.files[name])}\0".encode())
        state.update(tree.files[name])
    return state.hexdigest()


def _code_state() -> str:
    """Changes whenever the extraction itself was edited."""
    root = Path(__file__).parent.parent
    stamps = [f"{p.name}:{p.stat().st_mtime_ns}" for d in ("extract", "model") for p in sorted((root / d).glob("*.py"))]
    return hashlib.sha256("".join(stamps).encode()).hexdigest()


def _load(key: str, tree: Tree) -> Snapshot | None:
    folder = _folder()
    if folder is None:
        return None
    try:
        content = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
        made = from_content(content, tree.label)
    except (OSError, ValueError, ExtractionError):
        return None  # no cache, or one of another make: read the release itself
    made.sources = Sources({n: t for n, t in _texts(tree).items() if n.endswith(".py")})
    return made


def _store(key: str, snapshot: Snapshot) -> None:
    folder = _folder()
    if folder is None:
        return
    import tempfile

    with suppress(OSError):  # a cache that cannot be written only costs time
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False, suffix=".tmp") as out:
            json.dump(snapshot.content(), out, ensure_ascii=False, separators=(",", ":"))
        Path(out.name).replace(folder / f"{key}.json")
        for old in sorted(folder.glob("*.json"), key=lambda p: p.stat().st_mtime)[:-_KEEP]:
            old.unlink(missing_ok=True)
