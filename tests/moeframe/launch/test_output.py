"""A command outlives its standard output."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from moeframe.launch.output import lasting_output
with lasting_output() as output:
    for number in range(3):
        print("line", number, flush=True)
    print("told", file=sys.stderr)
error = None if output is None else output.error
os.write({result}, repr((None if error is None else error.errno, sys.stdout is sys.__stdout__)).encode())
"""


def run(redirection: str) -> tuple[int, str, str, str]:
    """Return exit code, stdout, stderr and what the script found."""
    mine, its = os.pipe()
    done = subprocess.run(
        ["bash", "-c", f"exec {sys.executable} -c '{SCRIPT.format(result=its)}' {redirection}"],
        pass_fds=[its],
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(its)
    with os.fdopen(mine) as found:
        return done.returncode, done.stdout, done.stderr, found.read()


@pytest.mark.parametrize(
    ("redirection", "printed", "found"),
    [
        ("", "line 0\nline 1\nline 2\n", "(None, True)"),
        ("> /dev/full", "", "(28, True)"),
        (">&-", "", "(None, True)"),
        ("2> /dev/full", "line 0\nline 1\nline 2\n", "(None, True)"),
    ],
)
def test_what_cannot_be_written_is_dropped_and_known(redirection: str, printed: str, found: str) -> None:
    code, out, err, said = run(redirection)
    assert (code, out, said) == (0, printed, found)
    assert err == ("" if redirection.startswith("2>") else "told\n")
