"""Long lines on a terminal break between words, under where their text begins. Files and pipes get them whole."""

from __future__ import annotations

import re
import shutil
import textwrap
from typing import Final, TextIO

__all__ = ["clipped", "for_reader"]

_NARROWEST: Final = 60
_LONGEST_WORD: Final = 400
_SHOWN: Final = 60
_BEFORE_TEXT: Final = re.compile(r" *(?:\S+ {2,})?")


def clipped(text: str) -> str:
    """Return text in which a word of more than 400 characters is its ends and its length."""

    def ends(word: re.Match[str]) -> str:
        return f"{word[0][:_SHOWN]}[...{len(word[0]):,} characters...]{word[0][-_SHOWN:]}"

    return re.sub(rf"\S{{{_LONGEST_WORD + 1},}}", ends, text)


def for_reader(text: str, stream: TextIO) -> str:
    """Return text as it is to be written to a stream.

    A line that goes on is indented to where its text begins: behind the title of a row (two spaces or more end a
    title), else two columns further in than the line.
    """
    if not stream.isatty():
        return text
    width = max(shutil.get_terminal_size().columns, _NARROWEST)
    return "\n".join(_wrapped(line, width) for line in text.split("\n"))


def _wrapped(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    before = _BEFORE_TEXT.match(line)
    assert before is not None
    title = bool(before[0].strip())
    start = before[0] if title else ""
    inner = " " * (len(start) if title else len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line[len(start) :],
        width=width,
        initial_indent=start,
        subsequent_indent=inner,
        drop_whitespace=True,
        break_long_words=False,
        break_on_hyphens=False,
    )
