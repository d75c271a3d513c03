"""The source text of the standard library that runs the job: real text that needs no download."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

from moeframe.errors import UserInputError
from moeframe.protocols.data import Dataset, DatasetContext, TokenSequence

if TYPE_CHECKING:
    from moeframe_datasets.options import PythonSourcesOptions

SEPARATOR = 0
"""The byte between two files; it occurs in no Python source."""

_LEFT_OUT = frozenset({"test", "tests", "site-packages", "dist-packages", "__pycache__"})


def source_files(root: Path) -> list[Path]:
    """Return the library's modules below `root` in the order of their relative names, tests and packages left out."""
    found = [path for path in root.rglob("*.py") if not _LEFT_OUT.intersection(path.relative_to(root).parts)]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


class PythonSources(Dataset):
    """Consecutive windows of seq_len + 1 bytes (the last one of a window is the first of the next).

    Validation holds out whole files, so no window of one split is seen in the other. The text depends on the Python
    version: runs are comparable on one version.

    Raises:
        UserInputError: this Python has no source files, or `validation_every` is below 2.
    """

    def __init__(self, options: PythonSourcesOptions, context: DatasetContext) -> None:
        if options.validation_every < 2:
            raise UserInputError(
                f"data.options.validation_every is {options.validation_every}: one file in so many is held out, "
                f"so it must be at least 2."
            )
        root = Path(sysconfig.get_path("stdlib"))
        files = source_files(root)
        if not files:
            raise UserInputError(
                f"data.name = 'python_sources': this Python has no source files in {root}. "
                f"Use a Python with its library unpacked, or data.name=synthetic."
            )
        held_out = context.split == "validation"
        chosen = [
            path
            for number, path in enumerate(files)
            if (number % options.validation_every == options.validation_every - 1) == held_out
        ]
        text = bytes([SEPARATOR]).join(path.read_bytes() for path in chosen)
        self._bytes = numpy.frombuffer(text, dtype=numpy.uint8)
        self._seq_len = context.seq_len

    @property
    def num_sequences(self) -> int:
        """Whole windows in the text."""
        return max(0, (len(self._bytes) - 1) // self._seq_len)

    def sequence(self, index: int) -> TokenSequence:
        """Return window `index`."""
        start = index * self._seq_len
        return TokenSequence(tokens=self._bytes[start : start + self._seq_len + 1].astype(numpy.int64))
