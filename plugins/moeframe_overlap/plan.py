"""The schedule as data. Importable without torch."""

from __future__ import annotations

from moeframe.errors import ContractError
from moeframe.schedule.actions import Action, Plan

__all__ = ["plan"]


def plan(num_stages: int, num_micro_batches: int) -> Plan:
    """Return F0, then F1 B0 F2 B1 ..., then the last backward. Each F runs beside the B that follows it.

    Raises:
        ContractError: there is more than one stage.
    """
    if num_stages != 1:
        raise ContractError(f"overlap_1f1b has one stage, not {num_stages}.")
    actions = [Action("forward", 0, 0)] if num_micro_batches else []
    for number in range(1, num_micro_batches):
        actions += [Action("forward", 0, number), Action("backward", 0, number - 1)]
    if num_micro_batches:
        actions.append(Action("backward", 0, num_micro_batches - 1))
    return Plan(num_stages=1, num_micro_batches=num_micro_batches, ranks=(tuple(actions),))
