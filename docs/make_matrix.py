"""Proves every combination, writes matrix.json and from it matrix.md: ``python docs/make_matrix.py``.

Results of GPUs come from matrix_gpu.json, a list of objects like those of matrix.json with one more field, ``machine``.
They count for combinations that no CPU can run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from moeframe.config.load import load_recipe
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.testing.ranks import RankPool
from moeframe.verify.matrix.cells import Cell, plan_cells
from moeframe.verify.matrix.page import render
from moeframe.verify.matrix.prove import Prover
from moeframe.verify.matrix.record import Entry, drift, expected, load_entries, load_gpu_entries, save_entries
from moeframe.verify.reference.plugin import MODULE

HERE: Final = Path(__file__).parent
MATRIX: Final = HERE / "matrix.json"
GPU: Final = HERE / "matrix_gpu.json"
PAGE: Final = HERE / "matrix.md"
BASE: Final = "recipes/quickstart.yaml"
RECIPE: Final = HERE.parent / BASE

_RANKS: Final = 4


def planned() -> list[Cell]:
    """Return the cells of what is offered now."""
    return plan_cells(load_recipe(RECIPE), Catalog(build_plugin_manager((), listing=True)))


def page() -> str:
    """Return the page of the file as it is."""
    return render(load_entries(MATRIX), BASE)


def main(arguments: Sequence[str]) -> int:
    """Prove what there is to prove; return 1 when something computes other numbers, 3 when time ran out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--missing", action="store_true", help="only what matrix.json says nothing of")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no proof after so many")
    given = parser.parse_args(arguments)
    cells, gpu, today = planned(), load_gpu_entries(GPU), datetime.now(tz=UTC).date().isoformat()
    known = {entry.key: entry for entry in load_entries(MATRIX)} if given.missing else {}
    entries = {cell.key: entry for cell in cells if (entry := _told(cell, known.get(cell.key), gpu, today))}
    open_cells = [cell for cell in cells if cell.key not in entries]
    started, wrong = time.monotonic(), 0
    with RankPool(_RANKS) as pool:
        prover = Prover(RECIPE, Catalog(build_plugin_manager((MODULE,))), pool)
        for number, cell in enumerate(open_cells):
            took = time.monotonic() - started
            if took > given.seconds:
                break
            proof = prover.prove(cell.overrides)
            _say(f"{number + 1}/{len(open_cells)} after {took:.0f} s: {cell.title}: {proof.words}")
            if proof.equal:
                entries[cell.key] = Entry(overrides=cell.overrides, status="proved", reason=proof.words, date=today)
                save_entries(MATRIX, [entries[cell.key] for cell in cells if cell.key in entries])
            else:
                wrong += 1
                _say(f"DIFFERENT. Look closer: moeframe verify {BASE} {' '.join(cell.overrides)}")
    whole = [entries[cell.key] for cell in cells if cell.key in entries]
    save_entries(MATRIX, whole)
    left = drift(whole, cells, gpu)
    if not left:
        PAGE.write_text(render(whole, BASE), encoding="utf-8")
    _say(f"{len(whole)} of {len(cells)} combinations are proved or refused, {wrong} differ.")
    return 1 if wrong else 3 if left else 0


def _told(cell: Cell, known: Entry | None, gpu: dict[tuple[str, ...], Entry], today: str) -> Entry | None:
    """Return the entry of a cell that needs no proof now: a known one that still holds, or one that needs no run."""
    if known is not None and not drift([known], [cell], {key: one for key, one in gpu.items() if key == cell.key}):
        return known
    return expected(cell, gpu, today)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
