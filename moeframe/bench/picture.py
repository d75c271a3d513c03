"""A stretch of the measured traces as a picture: what each stream did, under whom. Importable without matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from moeframe.bench.slots import Slot, read_slots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["build_figure", "draw"]

_COLOURS: Final = {
    "attend": "#4477aa",
    "dispatch": "#ee7733",
    "experts": "#228833",
    "combine": "#cc3311",
    "head": "#7b4a9e",
    "embed": "#7b4a9e",
    "": "#bbbbbb",
}
_STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "legend.frameon": False,
    "svg.hashsalt": "moeframe",
}
_LABELLED: Final = 0.035
"""A slot of at least this share of the width bears its phase."""
_FEWEST: Final = 0.002
"""A stream that is busy for less than this share of the width is not shown."""


def draw(data: Mapping[str, Any], file: Path) -> None:
    """Draw what `moeframe.bench.overlap` wrote; the ending of the file says in which format."""
    with _styled():
        build_figure(data).savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def build_figure(data: Mapping[str, Any]) -> Figure:
    """Return the picture: one panel for each schedule that was profiled, a row for each of its streams."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch

    panels = [
        (schedule, one["slow_us"], found)
        for one in data["passes"]
        for schedule in one["schedules"]
        if (found := read_slots(schedule.get("slots", ())))
    ]
    width = max((slot.end for *_, found in panels for slot in found), default=1.0)
    rows = [_streams(found, width) for *_, found in panels]
    with _styled():
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
        figure = Figure(figsize=(12, 1.1 + sum(0.75 + 0.5 * len(streams) for streams in rows)), dpi=110, layout=layout)
        axes = figure.subplots(
            len(panels), 1, squeeze=False, sharex=True, height_ratios=[1 + len(streams) for streams in rows]
        )
        for ax, (schedule, slow_us, found), streams in zip(axes[:, 0], panels, rows, strict=True):
            _draw_panel(ax, found, streams, width)
            ax.set_title(_title(schedule, slow_us))
        axes[-1, 0].set_xlabel("ms")
        figure.suptitle(f"{data['name']}, {data['dispatcher']}, {data['device']}", x=0.008, ha="left")
        shown = [phase for phase in ("attend", "dispatch", "experts", "combine") if _has(panels, phase)]
        handles = [Patch(color=_COLOURS[phase], label=phase) for phase in shown]
        handles.append(Patch(facecolor="#dddddd", hatch="////", edgecolor="white", label="backward"))
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return figure


def _has(panels: Sequence[tuple[Any, float, Sequence[Slot]]], phase: str) -> bool:
    return any(slot.phase == phase for *_, found in panels for slot in found)


def _title(schedule: Mapping[str, Any], slow_us: float) -> str:
    slowed = f", exchanges slowed by {slow_us:g} us each" if slow_us else ""
    hidden = schedule["communication"]["share"]
    return (
        f"{schedule['name']}{slowed}: {schedule['step_ms']:.0f} ms a step, {hidden:.0%} of dispatch and combine hidden"
    )


def _streams(found: Sequence[Slot], width: float) -> list[int]:
    """Return the streams to show, the one that communicates last."""
    busy: dict[int, float] = {}
    sends: dict[int, float] = {}
    for slot in found:
        busy[slot.stream] = busy.get(slot.stream, 0.0) + slot.end - slot.start
        if slot.phase in ("dispatch", "combine"):
            sends[slot.stream] = sends.get(slot.stream, 0.0) + slot.end - slot.start
    shown = [stream for stream, time in busy.items() if time >= _FEWEST * width]
    return sorted(shown, key=lambda stream: (sends.get(stream, 0.0) / busy[stream], stream))


def _draw_panel(ax: Axes, found: Sequence[Slot], streams: Sequence[int], width: float) -> None:
    for row, stream in enumerate(streams):
        for slot in found:
            if slot.stream != stream:
                continue
            colour = _COLOURS.get(slot.phase, _COLOURS[""])
            ax.broken_barh(
                [(slot.start / 1e3, (slot.end - slot.start) / 1e3)],
                (row - 0.4, 0.8),
                facecolor=colour,
                edgecolor="white",
                linewidth=0.3,
                hatch="////" if slot.direction == "backward" and slot.phase else None,
            )
            if slot.phase and slot.end - slot.start >= _LABELLED * width:
                middle = (slot.start + slot.end) / 2e3
                box = {"boxstyle": "round,pad=0.15", "facecolor": colour, "edgecolor": "none"}
                ax.text(middle, row, slot.phase, ha="center", va="center", color="white", fontsize=7.5, bbox=box)
    several = len(streams) > 1
    names = ["compute", "communication"] if len(streams) == 2 else [f"stream {stream}" for stream in streams]
    ax.set_yticks(range(len(streams)), names if several else ["all"])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(-0.6, len(streams) - 0.4)
    ax.set_xlim(0, width / 1e3)


@contextmanager
def _styled() -> Iterator[None]:
    """Draw in this module's style, whatever the user's matplotlibrc says."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield
