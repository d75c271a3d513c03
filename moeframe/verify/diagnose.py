"""From differences to findings: which parameters, by which ratio, and the likely cause. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from moeframe.verify.by_bias import find_biases
from moeframe.verify.by_factor import find_factors
from moeframe.verify.by_norm import find_norms
from moeframe.verify.by_weight import find_weights
from moeframe.verify.causes import FORMULA_CAUSES
from moeframe.verify.compare import QUANTITIES, groups_of
from moeframe.verify.findings import Case, Finding, names_of
from moeframe.verify.records import FormulaFinding, RankNumbers
from moeframe.verify.weights import Basis

__all__ = ["diagnose"]


def diagnose(
    cases: Sequence[Case],
    reference: RankNumbers,
    *,
    basis: Callable[[], Basis],
    probes: Callable[[Case], Sequence[str]],
) -> list[Finding]:
    """Return what is wrong, causes before consequences.

    Args:
        cases: the layouts that ran.
        reference: what they are compared with.
        basis: computes the gradients of the parts of the loss; called when a gradient differs in no simple way.
        probes: tries the parts of a layout one by one and returns what is wrong with them; called when forward or
            backward differ and neither formulas nor means say why.
    """
    findings = [*_broken_formulas(cases, reference)]
    wrong = [case for case in cases if case.compared.differences]
    if not wrong:
        return findings
    findings += find_weights(cases, reference, basis)
    computed = [case for case in wrong if case.compared.of("gradients") or case.compared.of("losses")]
    if computed and not any(finding.cause for finding in findings):
        findings += _probed(computed, probes)
    for quantity in ("gradients", "clipped", "loads", "losses"):
        findings += find_factors(cases, reference, quantity)
    findings += [*find_norms(cases, reference), *find_biases(cases, reference)]
    explained = {title for finding in findings if finding.cause for title in finding.layouts}
    findings = [finding for finding in findings if finding.cause or not explained.issuperset(finding.layouts)]
    named = {title for finding in findings for title in finding.layouts}
    findings += [one for case in wrong if case.title not in named for one in _unexplained(case, reference)]
    return findings


def _broken_formulas(cases: Sequence[Case], reference: RankNumbers) -> Iterator[Finding]:
    """Yield broken formulas, each once, with where."""
    where: dict[str, list[str]] = {}
    first: dict[str, FormulaFinding] = {}
    for title, ranks in (("reference", (reference,)), *((case.title, case.ranks) for case in cases)):
        for found in (found for numbers in ranks for found in numbers.formulas):
            first.setdefault(found.key, found)
            where.setdefault(found.key, []).append(title)
    for key, found in first.items():
        yield Finding(
            layouts=tuple(dict.fromkeys(where[key])),
            what=found.what,
            ratio=f"{found.observed} in place of {found.expected}",
            cause=FORMULA_CAUSES[key],
            details="compared with the formula, not with another layout",
        )


def _probed(wrong: Sequence[Case], probes: Callable[[Case], Sequence[str]]) -> Iterator[Finding]:
    """Yield what is wrong with single parts, tried in the smallest layout that differs."""
    case = min(wrong, key=lambda case: (case.layout.degrees.world, case.title))
    for sentence in probes(case):
        part, _, cause = sentence.partition(": ")
        yield Finding(
            layouts=(case.title,),
            what=part,
            ratio=None,
            cause=cause,
            details="tried by itself, with inputs whose result is known",
        )


def _unexplained(case: Case, reference: RankNumbers) -> Iterator[Finding]:
    """Yield the first wrong quantity of a layout for which nothing else was found."""
    for quantity in QUANTITIES:
        groups = groups_of(case.compared, quantity, names_of(reference, quantity))
        for group in groups:
            ranks = ", ".join(map(str, group.ranks)) or "none"
            yield Finding(
                layouts=(case.title,),
                what=f"{quantity} of {', '.join(group.patterns)}",
                ratio=None if group.median is None else f"median x{group.median:.3f}",
                cause=None,
                details=f"relative difference {group.relative:.1e}, from step {group.step + 1} on, rank(s) {ranks}",
            )
        if groups:
            return
