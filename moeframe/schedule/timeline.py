"""Pictures of a simulated plan: text for a terminal, PNG for a page."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from moeframe.schedule.actions import Action, Kind
from moeframe.schedule.simulate import Simulation

__all__ = ["draw_timeline", "text_timeline"]

_COLORS: Final[dict[Kind, str]] = {
    "forward": "#4c78a8",
    "backward": "#59a14f",
    "backward_input": "#76b7b2",
    "backward_weight": "#b6d7a8",
}


def _label(action: Action, *, with_stage: bool) -> str:
    text = str(action)
    return text if with_stage else text.removeprefix(str(action.stage))


def _many_stages(simulation: Simulation) -> bool:
    return simulation.plan.num_stages > len(simulation.ranks)


def text_timeline(simulation: Simulation) -> str:
    """Return one line a rank, one column a unit of time: the action where it starts, dashes while it runs, dots idle.

    F forward, B backward, I gradient of the input, W of the weights; stage before, micro-batch behind. Without
    stages when every rank holds one.
    """
    with_stage = _many_stages(simulation)
    labels = [[_label(timed.action, with_stage=with_stage) for timed in rank] for rank in simulation.ranks]
    width = 1 + max((len(label) for rank in labels for label in rank), default=1)
    lines = []
    for number, rank in enumerate(simulation.ranks):
        cells = ["." * (width - 1) + " "] * simulation.length
        for timed, label in zip(rank, labels[number], strict=True):
            for column in range(timed.start, timed.end):
                text = label if column == timed.start else "-" * len(label)
                cells[column] = text.ljust(width)
        lines.append(f"rank {number}  {''.join(cells)}".rstrip())
    return "\n".join(lines)


def draw_timeline(simulation: Simulation, path: Path, *, title: str = "") -> None:
    """Write the timeline as a picture, in the format of the path's suffix; imports matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ranks, length = len(simulation.ranks), max(1, simulation.length)
    figure = Figure(figsize=(min(24.0, 2.0 + 0.35 * length), 1.2 + 0.45 * ranks), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    with_stage = _many_stages(simulation)
    for number, rank in enumerate(simulation.ranks):
        for timed in rank:
            span = timed.end - timed.start
            color = _COLORS[timed.action.kind]
            axes.broken_barh([(timed.start, span)], (number - 0.42, 0.84), facecolors=color, edgecolor="white")
            label = _label(timed.action, with_stage=with_stage)
            axes.text(timed.start + span / 2, number, label, ha="center", va="center", fontsize=6)
    axes.set_yticks(range(ranks), [f"rank {number}" for number in range(ranks)])
    axes.set_ylim(ranks - 0.5, -0.5)
    axes.set_xlim(0, length)
    axes.set_xlabel("time")
    peaks = ", ".join(map(str, simulation.peak_live))
    axes.set_title(f"{title}{': ' if title else ''}bubble {simulation.bubble:.4f}, peak live activations {peaks}")
    figure.savefig(path, dpi=150)
