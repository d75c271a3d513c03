"""Snapshots of several releases at once: large ones in parallel, and each file of a release read once.

The cache keeps, for each tree of files, what every file contributes. A tree that differs in a few files takes the
others from the newest tree of the same package.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from moeframe_compat.errors import ExtractionError
from moeframe_compat.extract.package import Extraction, Part, assemble, read_part, wanted_files
from moeframe_compat.extract.trees import Spec, Tree, read_tree
from moeframe_compat.model.snapshot import Snapshot, parse_snapshot

PARALLEL = 200_000
"""Bytes of source for each of two processes from which the second one pays."""
_KEEP = 12

Parts = dict[str, Part]


def cached_snapshots(wanted: list[tuple[Spec, Extraction]]) -> list[Snapshot]:
    """The snapshot of each SPEC.

    Raises:
        ExtractionError: One of them cannot be read.
    """
    cache = Cache()
    done: dict[int, Snapshot] = {}
    trees: dict[int, tuple[Tree, list[str]]] = {}
    for i, (spec, how) in enumerate(wanted):
        if spec.kind == "snapshot":
            done[i] = _from_file(spec, how, cache)
        else:
            tree = read_tree(
                spec,
                how.package,
                distribution=how.distribution,
                root=how.root,
                recipes=how.recipes,
                companions=how.companions,
            )
            trees[i] = tree, wanted_files(tree, how)
    keys = {i: _keys(tree, files) for i, (tree, files) in trees.items()}
    parts: dict[int, Parts] = {i: cache.parts(trees[i][0].package, keys[i]) for i in trees}
    missing = {i: (t, [f for f in files if f not in parts[i]]) for i, (t, files) in trees.items()}
    fresh = _read_all({i: (tree, files) for i, (tree, files) in missing.items() if files})
    for i, (tree, files) in trees.items():
        parts[i] |= fresh.get(i, {})
        if i in fresh:
            cache.keep_parts(tree.package, keys[i], parts[i])
        done[i] = assemble(tree, {file: parts[i][file] for file in files})
    return [done[i] for i in range(len(wanted))]


def _from_file(spec: Spec, how: Extraction, cache: Cache) -> Snapshot:
    path = Path(spec.value)
    try:
        data = path.read_bytes()
    except OSError as e:
        raise ExtractionError(f"snapshot {path}: {e.strerror}") from e
    name = f"snapshot-{hashlib.sha256(data).hexdigest()[:40]}"
    found = cache.load(name)
    if not isinstance(found, Snapshot):
        found = parse_snapshot(data, path)
        cache.keep(name, found)
    found.label = spec.label
    if found.package != how.package:
        raise ExtractionError(f"snapshot {spec.label}: of package {found.package!r}, not {how.package!r}")
    return found


def _keys(tree: Tree, files: list[str]) -> dict[str, str]:
    """What the part of each file depends on."""
    head = f"{tree.package}\0{tree.prefix}\0{sorted(tree.companions.items())}"
    return {f: hashlib.sha256(f"{head}\0{f}\0".encode() + tree.files[f]).hexdigest() for f in files}


Job = tuple[int, Tree, str]
"""A file to read: the number of its tree, the tree, its name."""


def _read_all(trees: Mapping[int, tuple[Tree, list[str]]]) -> dict[int, Parts]:
    """Read files of all trees; a second process reads half of them where that pays.

    Raises:
        ExtractionError: A file cannot be read; the first one, in whatever process.
    """
    jobs = [(i, tree, file) for i, (tree, files) in trees.items() for file in files]
    whole = sum(len(tree.files[file]) for _, tree, file in jobs)
    if whole < 2 * PARALLEL or (os.cpu_count() or 1) < 2 or not _may_fork():
        return _sorted(_read(jobs))
    import multiprocessing

    from moeframe_compat.extract import modules  # once, for both

    assert modules
    size, count = 0, 0
    while size < whole / 2:
        size, count = size + len(jobs[count][1].files[jobs[count][2]]), count + 1
    receiving, sending = multiprocessing.get_context("fork").Pipe(duplex=False)
    worker = multiprocessing.get_context("fork").Process(target=_work, args=(sending, jobs[:count]), daemon=True)
    worker.start()
    sending.close()
    mine, refused = _tried(jobs[count:])
    try:
        theirs, first = pickle.loads(receiving.recv_bytes())  # noqa: S301 - from our own child
    except EOFError:
        raise ExtractionError(f"the reading process died (exit {worker.exitcode}); is memory short?") from None
    worker.join()
    if first or refused:
        raise ExtractionError(first or refused)
    return _sorted(theirs | mine)


def _may_fork() -> bool:
    """Is this process alone with itself, and can it be copied? Libraries that start threads must not be loaded."""
    import threading

    return hasattr(os, "fork") and threading.active_count() == 1 and "torch" not in sys.modules


def _read(jobs: list[Job]) -> dict[tuple[int, str], Part]:
    return {(i, file): read_part(file, tree) for i, tree, file in jobs}


def _tried(jobs: list[Job]) -> tuple[dict[tuple[int, str], Part], str]:
    """What was read, and why not."""
    try:
        return _read(jobs), ""
    except ExtractionError as e:
        return {}, str(e)


def _sorted(parts: dict[tuple[int, str], Part]) -> dict[int, Parts]:
    out: dict[int, Parts] = {}
    for (i, file), part in parts.items():
        out.setdefault(i, {})[file] = part
    return out


def _work(sending: Any, jobs: list[Job]) -> None:
    sending.send_bytes(pickle.dumps(_tried(jobs), protocol=pickle.HIGHEST_PROTOCOL))
    sending.close()


class Cache:
    """Files below one folder that only this user writes; without such a folder nothing is kept.

    `MOEFRAME_COMPAT_CACHE` names another folder, or is `off`.
    """

    def __init__(self) -> None:
        self.folder = _folder()
        self.state = _STATE

    def load(self, name: str) -> Any:
        """What is kept under a name; None if nothing is."""
        return None if self.folder is None else self._read(self._file(name))

    def keep(self, name: str, value: object) -> None:
        """Keep a value under a name. What cannot be written only costs time."""
        if self.folder is None:
            return
        import tempfile

        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile("wb", dir=self.folder, delete=False, suffix=".tmp") as out:
                kept = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
                out.write(_seal(kept) + kept)
            Path(out.name).replace(self._file(name))
            for old in sorted(self.folder.glob("*.pickle"), key=lambda p: p.stat().st_mtime)[:-_KEEP]:
                old.unlink(missing_ok=True)

    def parts(self, package: str, keys: Mapping[str, str]) -> Parts:
        """Parts of files with these keys, from the same tree or from the newest one of the package."""
        if self.folder is None:
            return {}
        same = self._file(_tree_name(package, keys))
        family = self.folder.glob(f"{self.state}-tree-{package}-*.pickle")
        with suppress(OSError):
            donor = same if same.is_file() else max(family, key=lambda p: p.stat().st_mtime, default=same)
            known = self._read(donor)
            if isinstance(known, dict):
                return {file: known[key] for file, key in keys.items() if isinstance(known.get(key), Part)}
        return {}

    def keep_parts(self, package: str, keys: Mapping[str, str], parts: Parts) -> None:
        """Keep the parts of a tree."""
        self.keep(_tree_name(package, keys), {keys[file]: part for file, part in parts.items()})

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{self.state}-{name}.pickle"

    @staticmethod
    def _read(path: Path) -> Any:
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
                    return None  # somebody else may have written it
                seal, kept = file.read(_SEAL), file.read()
            return pickle.loads(kept) if seal == _seal(kept) else None  # noqa: S301 - our own file
        except Exception:  # noqa: BLE001 - no cache, or a damaged one: the release itself is read
            return None


_SEAL = 20


def _seal(kept: bytes) -> bytes:
    """What a whole file begins with: a flipped bit may leave a pickle that loads, with another name in it."""
    return hashlib.blake2b(kept, digest_size=_SEAL).digest()


def _tree_name(package: str, keys: Mapping[str, str]) -> str:
    content = hashlib.sha256("".join(f"{file}\0{key}\0" for file, key in keys.items()).encode()).hexdigest()
    return f"tree-{package}-{content[:40]}"


def _folder() -> Path | None:
    named = os.environ.get("MOEFRAME_COMPAT_CACHE", "")
    if named == "off":
        return None
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "moeframe-compat"
    except RuntimeError:  # a user without a home, as in containers
        return None


def _code_state() -> str:
    """Changes whenever what reads releases was edited, or another Python or griffe runs it."""
    root = Path(__file__).parent.parent
    griffe = find_spec("griffe")
    where = Path(griffe.origin) if griffe and griffe.origin else root
    stamps = [f"{where}:{where.stat().st_mtime_ns}"]
    stamps += [
        f"{p.name}:{p.stat().st_mtime_ns}" for d in ("extract", "model") for p in sorted((root / d).glob("*.py"))
    ]
    return hashlib.sha256(f"{sys.version}\0{root}\0{''.join(stamps)}".encode()).hexdigest()[:12]


_STATE = _code_state()
"""Of the code that this process runs: it may be edited later."""
