"""One rank of `moeframe bench overlap`: ``python -m moeframe.bench.worker SETTINGS`` (JSON)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from moeframe.bench.overlap import Settings, measure
from moeframe.errors import MoeframeError
from moeframe.launch.group import this_process

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Measure; rank 0 writes the result. Returns the exit code; a refusal goes to standard error."""
    settings = Settings(**json.loads(arguments[0]))
    try:
        for found in measure(settings):
            if this_process().rank == 0:
                Path(settings.out).write_text(json.dumps(found, indent=1), encoding="utf-8")
    except MoeframeError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
