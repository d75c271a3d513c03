"""Where a release comes from: `dir:PATH`, `git:REF`, `wheel:FILE`, `pypi:VERSION`, `snapshot:FILE`."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from moeframe_compat.errors import ExtractionError, UsageError

KINDS = ("dir", "git", "wheel", "pypi", "snapshot")
LATEST = "latest"
"""As `pypi:latest`: the newest release on the index."""
MAX_FILE = 8 * 2**20
"""Bytes; a larger source file is refused rather than parsed for minutes."""

_DATA = (".yaml", ".yml")
_TEXTS = (".md", ".rst", ".py", ".yaml", ".yml", ".sh")
_DOCUMENTS = ("docs/", "doc/", "examples/")
SURFACE_FILE = "moeframe_compat.toml"
"""In the package's own folder: what `[tool.moeframe_compat]` says of the API, for baselines that are wheels."""
LEDGER_FILE = "changes.toml"
"""In the package's own folder: the ledger that a release carries, for those who move to it."""
_PROJECT = ("pyproject.toml", "setup.cfg", "METADATA", "entry_points.txt")


@dataclass(slots=True)
class Spec:
    """A parsed SPEC."""

    kind: str
    value: str

    @property
    def label(self) -> str:
        """What reports call this release: no absolute paths."""
        if self.kind in ("git", "pypi"):
            return self.value
        name = PurePosixPath(self.value.replace("\\", "/")).name
        return name.removesuffix(".json") if self.kind == "snapshot" else name or "."


@dataclass(slots=True)
class Tree:
    """Files of one release: `files` maps a path as shown in reports to bytes; `prefix` is the package's own folder.

    `documents` are texts and examples beside the package, which nobody imports. `companions` are further packages of
    the release, each with its folder, whose offers count.
    """

    label: str
    package: str
    prefix: str
    files: dict[str, bytes] = field(default_factory=dict)
    documents: dict[str, bytes] = field(default_factory=dict)
    companions: dict[str, str] = field(default_factory=dict)


def parse_spec(text: str) -> Spec:
    """Split `kind:value`.

    Raises:
        UsageError: Not a SPEC.
    """
    kind, colon, value = text.partition(":")
    if not colon or kind not in KINDS or not value:
        raise UsageError(f"SPEC {text!r}: expected one of {', '.join(k + ':…' for k in KINDS)}")
    return Spec(kind, value)


def read_tree(
    spec: Spec,
    package: str,
    *,
    distribution: str = "",
    root: Path | None = None,
    recipes: tuple[str, ...] = ("recipes",),
    companions: tuple[str, ...] = (),
) -> Tree:
    """Read the files of a release.

    Args:
        spec: Anything but a snapshot.
        package: Dotted name of the import package.
        distribution: Name on the index; the package's name with hyphens if empty.
        root: Where `git:` looks; the current directory by default.
        recipes: Folders of data files beside the package.
        companions: Further import packages of the release; those that it lacks are no error.

    Raises:
        ExtractionError: It cannot be read, or holds no such package.
    """
    wanted = _Wanted(package, recipes, companions)
    if spec.kind == "dir":
        return _directory(Path(spec.value), spec.label, wanted)
    if spec.kind == "git":
        return _git(spec.value, wanted, root or Path.cwd())
    if spec.kind == "wheel":
        return _archive(Path(spec.value), spec.label, wanted)
    import tempfile

    with tempfile.TemporaryDirectory(prefix="moeframe-compat-") as folder:
        found = _download(spec.value, distribution or package.replace("_", "-").replace(".", "-"), Path(folder))
        return _archive(found, spec.label, wanted)


@dataclass(slots=True)
class _Wanted:
    """Which files of a release matter."""

    package: str
    recipes: tuple[str, ...]
    companions: tuple[str, ...] = ()

    def pick(self, label: str, names: list[str]) -> Tree:
        """A tree with no bytes yet: its `files` are the wanted names.

        Raises:
            ExtractionError: No such package.
        """
        inner = self.package.replace(".", "/")
        homes = [h for h in _HOMES if self._is_home(h + inner, names)]
        if not homes:
            nested = sorted(n for n in names if n.endswith((f"/{inner}/__init__.py", f"/{inner}.py")))
            homes = [nested[0][: nested[0].rindex(inner)]] if nested else []
        if not homes:
            have = sorted({n.split("/")[0] for n in names if n.endswith("/__init__.py") and n.count("/") == 1})
            hint = f"; it holds {', '.join(have[:6])}" if have else ""
            raise ExtractionError(f"{label}: no package {self.package!r} in it{hint}")
        prefix = homes[0] + inner
        single = f"{prefix}.py"
        tree = Tree(label, self.package, prefix if single not in names else homes[0].rstrip("/"))
        for companion in self.companions:
            inside = companion.replace(".", "/")
            home = next((h for h in _COMPANION_HOMES if self._is_home(h + inside, names)), None)
            if home is not None:
                tree.companions[companion] = home + inside
        folders = tuple(f"{folder}/" for folder in tree.companions.values())
        for name in names:
            if (
                name in (single, f"{prefix}/{SURFACE_FILE}", f"{prefix}/{LEDGER_FILE}")
                or (name.startswith(f"{prefix}/") and name.endswith((".py", *_DATA)))
                or self._beside(name)
                or (name.startswith(folders) and name.endswith(".py"))
            ):
                tree.files[name] = b""
            elif name.endswith(_TEXTS) and (name.count("/") == 0 or name.startswith(_DOCUMENTS)):
                tree.documents[name] = b""
        return tree

    @staticmethod
    def _is_home(prefix: str, names: list[str]) -> bool:
        return any(n.startswith(f"{prefix}/") and n.endswith(".py") for n in names) or f"{prefix}.py" in names

    def _beside(self, name: str) -> bool:
        last = name.rsplit("/", 1)[-1]
        if last in _PROJECT:
            return name.count("/") <= 2 and "test" not in name
        return name.endswith(_DATA) and any(name.startswith(f"{folder.strip('/')}/") for folder in self.recipes)


def _directory(path: Path, label: str, wanted: _Wanted) -> Tree:
    if not path.is_dir():
        raise ExtractionError(f"dir:{label}: no such directory")
    inner = wanted.package.replace(".", "/")
    if not (path / inner).exists() and f"/{path.resolve().as_posix()}".endswith(f"/{inner}"):
        path = path.resolve().parents[inner.count("/")]
    try:
        tree = wanted.pick(label, _names(path, wanted))
    except ExtractionError:
        tree = wanted.pick(label, _walk(path, ""))
    base = str(path)
    try:
        for name in tree.files:
            data = _bytes(f"{base}/{name}")
            if isinstance(data, int):
                raise ExtractionError(_too_big(name, data))
            tree.files[name] = data
        for name in list(tree.documents):
            data = _bytes(f"{base}/{name}")
            if isinstance(data, bytes):
                tree.documents[name] = data
            else:
                del tree.documents[name]
    except OSError as e:
        raise ExtractionError(f"dir:{label}: {e.strerror}: {name}") from e
    return tree


def _bytes(file: str) -> bytes | int:
    """What a file holds, or its size if it is too big."""
    with open(file, "rb", buffering=0, opener=_at_once) as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        size = status.st_size
        return size if size > MAX_FILE else opened.readall()


def _at_once(file: str, flags: int) -> int:
    """Opening a pipe would wait for somebody who writes."""
    return os.open(file, flags | getattr(os, "O_NONBLOCK", 0))


def _names(path: Path, wanted: _Wanted) -> list[str]:
    """Files below a folder; where the package is at a usual place, only those that may matter."""
    inner = wanted.package.replace(".", "/")
    home = next((h for h in _HOMES if (path / h / inner).is_dir() or (path / h / f"{inner}.py").is_file()), None)
    if home is None:
        return _walk(path, "")
    above = [home, *(f"{home}{inner[:i]}/" for i, letter in enumerate(inner) if letter == "/")]
    names = [name for folder in dict.fromkeys(["", *above]) for name in _files(path, folder)]
    folders = [f.strip("/") for f in (*wanted.recipes, *_DOCUMENTS)]
    folders += [f.name for f in path.iterdir() if f.name.endswith((".dist-info", ".egg-info"))]
    inside = [c.replace(".", "/") for c in wanted.companions]
    folders += [h + c for c in inside for h in _COMPANION_HOMES if (path / h / c).is_dir()]
    for folder in dict.fromkeys([home + inner, *sorted(folders)]):
        names += _walk(path, folder)
    return names


def _files(path: Path, folder: str) -> list[str]:
    return sorted(f"{folder}{entry.name}" for entry in os.scandir(path / folder) if entry.is_file())


def _walk(path: Path, start: str) -> list[str]:
    names = []
    for folder, folders, found in os.walk(path / start):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIP)
        base = Path(folder).relative_to(path).as_posix()
        names += [n if base == "." else f"{base}/{n}" for n in sorted(found) if not n.startswith(".")]
    return names


_COMPANION_HOMES = ("", "src/", "lib/", "python/", "plugins/", "packages/")
_HOMES = ("", "src/", "lib/", "python/")
_SKIP = frozenset({"__pycache__", "node_modules", "build", "dist", "venv", ".venv", "site-packages"})


def _too_big(name: str, size: int) -> str:
    return f"{name}: {size / 2**20:.1f} MiB, sources above {MAX_FILE / 2**20:.0f} MiB are not read; exclude the file"


def _git(ref: str, wanted: _Wanted, root: Path) -> Tree:
    import subprocess

    def git(*args: str, feed: bytes | None = None) -> bytes:
        try:
            done = subprocess.run(["git", "-C", str(root), *args], input=feed, capture_output=True, check=False)  # noqa: S603, S607
        except OSError as e:
            raise ExtractionError(f"git:{ref}: git cannot be run: {e.strerror}") from e
        if done.returncode:
            message = done.stderr.decode(errors="replace").strip().splitlines()
            raise ExtractionError(f"git:{ref}: {message[-1] if message else 'git failed'}")
        return done.stdout

    git("rev-parse", "--verify", "--quiet", "HEAD^{commit}") if ref == "HEAD" else None
    try:
        commit = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}").decode().strip()
    except ExtractionError:
        raise ExtractionError(
            f"git:{ref}: no such commit, branch or tag here; fetch it, or use a snapshot as baseline"
        ) from None
    listing = git(
        "ls-tree", "-r", "-z", "--format=%(objecttype) %(objectname) %(objectsize) %(path)", "--full-tree", commit
    )
    blobs: dict[str, tuple[str, int]] = {}
    for row in listing.decode(errors="surrogateescape").split("\0"):
        kind, _, rest = row.partition(" ")
        if kind == "blob":
            name, size, path = rest.split(maxsplit=2)
            blobs[path] = (name, int(size))
    tree = wanted.pick(ref, sorted(blobs))
    for path in tree.files:
        if blobs[path][1] > MAX_FILE:
            raise ExtractionError(_too_big(path, blobs[path][1]))
    stream = io.BytesIO(git("cat-file", "--batch", feed="".join(f"{blobs[p][0]}\n" for p in tree.files).encode()))
    for path in tree.files:
        length = int(stream.readline().split()[2])
        tree.files[path] = stream.read(length)
        stream.read(1)
    tree.documents.clear()  # of tags only the code counts
    return tree


def _archive(path: Path, label: str, wanted: _Wanted) -> Tree:
    import tarfile
    import zipfile

    try:
        if path.name.endswith((".tar.gz", ".tgz")):
            return _tarball(path, label, wanted)
        with zipfile.ZipFile(path) as archive:
            sizes = {i.filename: i.file_size for i in archive.infolist() if not i.is_dir()}
            tree = wanted.pick(label, sorted(sizes))
            for name in tree.files:
                if sizes[name] > MAX_FILE:
                    raise ExtractionError(_too_big(name, sizes[name]))
                tree.files[name] = archive.read(name)
            tree.documents.clear()
    except FileNotFoundError:
        raise ExtractionError(f"{label}: no such file") from None
    except (OSError, zipfile.BadZipFile, tarfile.TarError) as e:
        raise ExtractionError(f"{label}: not a readable wheel or sdist: {e}") from e
    return tree


def _tarball(path: Path, label: str, wanted: _Wanted) -> Tree:
    import tarfile

    with tarfile.open(path) as archive:
        members = {m.name.partition("/")[2]: m for m in archive.getmembers() if m.isfile()}
        tree = wanted.pick(label, sorted(members))
        for name in tree.files:
            if members[name].size > MAX_FILE:
                raise ExtractionError(_too_big(name, members[name].size))
            stream = archive.extractfile(members[name])
            assert stream is not None
            tree.files[name] = stream.read()
    tree.documents.clear()
    return tree


def _download(version: str, distribution: str, folder: Path) -> Path:
    import subprocess

    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--disable-pip-version-check",
        "--dest",
        str(folder),
        distribution if version == LATEST else f"{distribution}=={version}",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ExtractionError(f"pypi:{version}: {distribution} cannot be downloaded: {type(e).__name__}") from e
    found = sorted(p for p in folder.iterdir() if p.name.endswith((".whl", ".tar.gz", ".zip")))
    if done.returncode or not found:
        lines = [x for x in done.stderr.splitlines() if x.startswith("ERROR")] or ["pip found nothing"]
        raise ExtractionError(f"pypi:{version}: {distribution}: {lines[-1].removeprefix('ERROR: ')}")
    return found[0]
