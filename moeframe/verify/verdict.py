"""What a verification comes to: rows, findings, exit code; as text and as data."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from moeframe.verify.compare import QUANTITIES, TOLERANCE, in_words
from moeframe.verify.findings import Case, Finding
from moeframe.verify.records import RankNumbers

__all__ = ["Row", "Verdict"]

_TITLES: Final = {
    "losses": "losses",
    "loads": "loads",
    "gradients": "gradients",
    "norm": "norm",
    "clipped": "clipped",
    "biases": "bias",
    "parameters": "parameters",
}
_SHOWN_LINES: Final = 12


@dataclass(frozen=True, kw_only=True)
class Row:
    """One job. `worst`: the largest relative difference of each quantity. `error`: why it could not be run."""

    title: str
    processes: int
    verdict: Literal["reference", "equal", "DIFFERENT", "NOT RUN"]
    own: bool = False
    micro_batches: int | None = None
    worst: Mapping[str, float] = field(default_factory=dict)
    error: str = ""

    @classmethod
    def of(cls, case: Case) -> Row:
        """Return the row of a layout that ran."""
        return cls(
            title=case.title,
            processes=case.layout.degrees.world,
            own=case.layout.own,
            micro_batches=case.layout.num_micro_batches,
            worst=case.compared.worst,
            verdict="DIFFERENT" if case.compared.differences or any(r.formulas for r in case.ranks) else "equal",
        )

    @classmethod
    def reference(cls, broken_formulas: int) -> Row:
        """Return the row of the reference, which is compared with formulas."""
        return cls(title="reference", processes=1, verdict="DIFFERENT" if broken_formulas else "reference")

    @classmethod
    def failed(cls, title: str, processes: int, error: str, *, own: bool = False) -> Row:
        """Return the row of a job that could not be run."""
        return cls(title=title, processes=processes, verdict="NOT RUN", error=error, own=own)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome for one recipe.

    `reference` and `cases` hold the numbers that were compared; None and none when the reference could not be run.
    """

    name: str
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    seconds: float
    reference: RankNumbers | None = field(default=None, repr=False, compare=False)
    cases: tuple[Case, ...] = field(default=(), repr=False, compare=False)

    @property
    def exit_code(self) -> int:
        """1: something is wrong; 3: nothing is known to be wrong, but not everything could be run; 0: proved."""
        if self.findings or any(row.verdict == "DIFFERENT" for row in self.rows):
            return 1
        proved = [row for row in self.rows if row.verdict == "equal"]
        return 0 if proved and not any(row.verdict == "NOT RUN" for row in self.rows) else 3

    def data(self) -> dict[str, Any]:
        """Return everything as JSON types; a difference that is not finite is null."""
        return {
            "recipe": self.name,
            "verdict": {0: "proved", 1: "different", 3: "not proved"}[self.exit_code],
            "tolerance": TOLERANCE,
            "seconds": round(self.seconds, 3),
            "layouts": [
                {
                    "title": row.title,
                    "own": row.own,
                    "processes": row.processes,
                    "micro_batches": row.micro_batches,
                    "verdict": row.verdict.lower(),
                    "worst": {name: None if value == float("inf") else value for name, value in row.worst.items()},
                    "error": row.error or None,
                }
                for row in self.rows
            ],
            "findings": [
                {
                    "what": one.what,
                    "ratio": one.ratio,
                    "cause": one.cause,
                    "layouts": list(one.layouts),
                    "details": one.details,
                }
                for one in self.findings
            ],
            "notes": list(self.notes),
        }

    def lines(self, width: int = 100) -> Iterator[str]:
        """Yield the report, words wrapped at `width`."""
        yield from self._table()
        for row in self.rows:
            if row.error:
                yield ""
                yield f"{row.title}: could not be run"
                shown = row.error.splitlines()
                yield from (f"    {line}" for line in shown[:_SHOWN_LINES])
                if len(shown) > _SHOWN_LINES:
                    yield f"    ... {len(shown) - _SHOWN_LINES} more lines; --json has them all"
        for finding in self.findings:
            yield ""
            yield from textwrap.wrap(str(finding), width, subsequent_indent="    ", break_on_hyphens=False)
            yield from textwrap.wrap(
                f"in {', '.join(finding.layouts)}; {finding.details}",
                width,
                initial_indent="    ",
                subsequent_indent="    ",
            )
        for note in self.notes:
            yield ""
            yield from textwrap.wrap(f"note: {note}", width, subsequent_indent="    ")
        yield ""
        yield from textwrap.wrap(self._closing(), width)

    def _table(self) -> Iterator[str]:
        named = [(row, f"{row.title}{'  <- the recipe' if row.own else ''}") for row in self.rows]
        left = max(len("layout"), *(len(title) for _, title in named))
        cells = {name: max(len(title), 6) for name, title in _TITLES.items()}
        yield "worst relative difference from the reference, float64".rjust(left + 2)
        yield f"{'layout':<{left}}  " + "  ".join(f"{_TITLES[q]:>{cells[q]}}" for q in QUANTITIES) + "  verdict"
        for row, title in named:
            numbers = "  ".join(f"{in_words(row.worst[q]) if q in row.worst else '-':>{cells[q]}}" for q in QUANTITIES)
            yield f"{title:<{left}}  {numbers}  {row.verdict}"

    def _closing(self) -> str:
        took = f"{self.seconds:.0f} s"
        ran = sum(row.verdict == "equal" for row in self.rows)
        if self.exit_code == 0:
            layouts = f"{ran} layout{'s' if ran > 1 else ''}"
            return (
                f"proved: {layouts} of {self.name} compute{'s' if ran == 1 else ''} what one process computes "
                f"(tolerance {TOLERANCE:.0e}), in {took}."
            )
        if self.exit_code == 1:
            return f"NOT the same numbers: {self.name} computes something else than one process; see above. {took}."
        return f"NOT PROVED: something could not be run; see above. {took}."
