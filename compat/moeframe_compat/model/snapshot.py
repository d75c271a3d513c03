"""A snapshot: everything the rules may know about one release, and its canonical file form."""

from __future__ import annotations

import hashlib
import io
import json
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moeframe_compat.errors import ExtractionError
from moeframe_compat.model.codec import decode, encode
from moeframe_compat.model.objects import Module
from moeframe_compat.model.surfaces import Surfaces

SCHEMA = 1


@dataclass(slots=True)
class Snapshot:
    """One release of one package.

    Attributes:
        package: Name of the import package.
        label: Where it came from, as shown to people: `v0.8.0`, `before/`.
        version: Its version, "" if unknown.
        modules: By dotted path.
        surfaces: Command line, registries, recipes, project file.
        sources: Source text by file, when it was read from files; a snapshot file has none.
        documents: The same for texts and examples, when it was read from a folder.
        ledger: Text of the ledger that the package carries, "" if it has none or is a snapshot file.
    """

    package: str
    label: str
    version: str = ""
    modules: dict[str, Module] = field(default_factory=dict)
    surfaces: Surfaces = field(default_factory=Surfaces)
    sources: Sources | None = None
    documents: Sources | None = None
    ledger: str = ""

    def content(self) -> dict[str, Any]:
        """Plain data: everything but the label and the sources."""
        return {
            "package": self.package,
            "version": self.version,
            "modules": {path: encode(m) for path, m in sorted(self.modules.items())},
            "surfaces": encode(self.surfaces),
        }

    def dump(self) -> str:
        """The canonical text: modules sorted, members in order of definition, the hash of the content at the end."""
        content = self.content()
        data = {"schema": SCHEMA, "content": content, "sha256": digest(content)}
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


class Sources:
    """Python sources of a release by file, decoded when they are asked for; `beside`: what else the release has."""

    def __init__(self, files: dict[str, bytes], beside: dict[str, bytes] | None = None) -> None:
        self._files, self._beside = files, beside or {}

    def __iter__(self) -> Iterator[str]:
        """Names of the files."""
        return iter(self._files)

    def text(self, file: str) -> str | None:
        """The text of a file, None if there is none of that name."""
        data = self._files.get(file)
        if data is None:
            return None
        encoding = "utf-8"
        if file.endswith(".py"):
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding, errors="replace")

    def mention(self, word: str) -> bool:
        """Is the word in quotes anywhere?"""
        plain = word.encode()
        return any(b"'%b'" % plain in data or b'"%b"' % plain in data for data in self._files.values())

    def hold(self, text: str) -> bool:
        """Is a text anywhere in the sources?"""
        return any(text.encode() in data for data in self._files.values())

    def contain(self, word: str) -> bool:
        """Is the word in quotes in a source, or anywhere in another file of the release?"""
        return self.mention(word) or any(word.encode() in data for data in self._beside.values())


def digest(content: Any) -> str:
    """SHA-256 of canonical JSON."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def parse_snapshot(text: bytes, path: Path) -> Snapshot:
    """The snapshot in the bytes of a snapshot file.

    Raises:
        ExtractionError: Not a snapshot, of another schema, or changed by hand.
    """
    try:
        data = json.loads(text)
    except ValueError as e:
        raise ExtractionError(f"snapshot {path}: {e}") from e
    if not isinstance(data, dict) or "content" not in data or "schema" not in data:
        raise ExtractionError(f"snapshot {path}: not a snapshot; write one with `moeframe-compat snapshot`")
    if data["schema"] != SCHEMA:
        raise ExtractionError(
            f"snapshot {path}: schema {data['schema']}, this version reads {SCHEMA}; write it again from its release"
        )
    if digest(data["content"]) != data.get("sha256"):
        raise ExtractionError(f"snapshot {path}: its content does not match its sha256: it was changed by hand or cut")
    return from_content(data["content"], path.stem)


def from_content(content: dict[str, Any], label: str) -> Snapshot:
    """A snapshot from the content part of its file form."""
    try:
        return Snapshot(
            package=content["package"],
            label=label,
            version=content["version"],
            modules={path: decode(Module, m) for path, m in content["modules"].items()},
            surfaces=decode(Surfaces, content["surfaces"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise ExtractionError(f"snapshot {label}: malformed: {type(e).__name__}: {e}") from e
