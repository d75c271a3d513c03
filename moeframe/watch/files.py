"""Small files that others read while they are written."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_whole"]


def write_whole(file: Path, text: str) -> None:
    """Write a small file whole or not at all: a full disk leaves what was there."""
    part = file.with_name(f".{file.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(file)
