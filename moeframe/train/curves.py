"""`curves.png`: a run at a glance, drawn from metrics.jsonl and loads.jsonl. Importable without torch or matplotlib."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moeframe.train.loads import StepLoads, read_last_loads
from moeframe.train.progress import duration
from moeframe.train.run_directory import RunDirectory
from moeframe.train.step_file import read_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Series", "build_figure", "draw", "try_to_draw"]

_LOG: Final = "curves.log"
_INK, _GREY, _GRID = "#222222", "#6b6b6b", "#e4e4e4"
_BLUE, _ORANGE, _GREEN, _PURPLE = "#2166ac", "#d6701c", "#35803f", "#7b4a9e"
_FEW: Final = 20
"""Up to so many steps are drawn as points, unsmoothed."""
_MOST: Final = 2000
"""A line has at most so many points, each the mean of as many steps as that takes."""
_WIDE: Final = 20.0
"""An axis is logarithmic where the largest value is more than so many times the smallest."""
_STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": _GREY,
    "axes.labelcolor": _GREY,
    "axes.titlecolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.015,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "text.color": _INK,
}


@dataclass(frozen=True, kw_only=True)
class Series:
    """One metric over the steps that have a finite value of it."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, lines: Sequence[dict[str, Any]], key: str) -> Series:
        """Read a metric out of the lines of metrics.jsonl; null and NaN are left out."""
        found = [(line["step"], line[key]) for line in lines if line.get(key) is not None and math.isfinite(line[key])]
        return cls(steps=tuple(step for step, _ in found), values=tuple(value for _, value in found))

    def thinned(self, most: int = _MOST) -> Series:
        """Return at most `most` points, means over equally many neighbours (the last over what is left)."""
        width = -(-len(self.steps) // most)
        if width <= 1:
            return self
        starts = range(0, len(self.steps), width)
        blocks = [self.values[start : start + width] for start in starts]
        return Series(
            steps=tuple(self.steps[min(start + width // 2, len(self.steps) - 1)] for start in starts),
            values=tuple(math.fsum(block) / len(block) for block in blocks),
        )

    def smoothed(self) -> Series:
        """Return means over about a twentieth of the points, centred.

        At the start the window shrinks to stay centred on a steep descent, at the end it keeps what lies before.
        """
        count = len(self.values)
        half = count // 40
        sums = [0.0]
        for value in self.values:
            sums.append(sums[-1] + value)
        means = []
        for index in range(count):
            before = min(half, index)
            after = min(before, count - 1 - index)
            means.append((sums[index + after + 1] - sums[index - before]) / (before + 1 + after))
        return Series(steps=self.steps, values=tuple(means))


def try_to_draw(run_dir: RunDirectory) -> str:
    """Draw curves.png and return its path; where that fails, log it and return the reason. Raises nothing."""
    try:
        drawn = draw(run_dir)
    except Exception as error:  # noqa: BLE001  a run that trained well has not failed for want of a picture
        with suppress(OSError):
            (run_dir.log_dir / _LOG).write_text(traceback.format_exc(), encoding="utf-8")
        return f"not drawn, {type(error).__name__}: {error} (details: {run_dir.log_dir / _LOG})"
    return str(run_dir.curves_file) if drawn else "not drawn, no step was trained"


def draw(run_dir: RunDirectory) -> bool:
    """Draw curves.png, whole or not at all, without a display; return whether there was a step to draw."""
    lines = list(read_steps(run_dir.metrics_file))
    if not lines:
        return False
    loads = read_last_loads(run_dir.loads_file)
    part = run_dir.curves_file.with_name(f".{run_dir.curves_file.name}.part")
    try:
        with _styled():
            figure = build_figure(lines, loads, title=f"{run_dir.path.parent.name}  {run_dir.path.name}")
            figure.savefig(part, format="png")  # for PNG matplotlib takes the canvas that needs no display
        part.replace(run_dir.curves_file)
    finally:
        part.unlink(missing_ok=True)
    return True


def build_figure(lines: Sequence[dict[str, Any]], loads: StepLoads | None, *, title: str) -> Figure:
    """Return the picture of a run; each of its axes bears the name of its panel as label.

    Args:
        lines: of metrics.jsonl, at least one.
        loads: the last of loads.jsonl, None if there is none.
        title: names the run.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layers = len(loads.layers) if loads is not None else 0
    map_height = min(max(1.6, 0.28 * layers), 6.0) if layers else 0.4
    with _styled():
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
        figure = Figure(figsize=(13, 6.6 + map_height), dpi=110, layout=layout)
        axes = figure.subplot_mosaic(
            [["loss", "loss", "speed"], ["norm", "rate", "balance"], ["load", "load", "load"]],
            height_ratios=[3.2, 2.2, map_height],
        )
        figure.suptitle(f"{title}\n{_subtitle(lines)}", x=0.008, ha="left", fontsize=11)
        _draw_loss(axes["loss"], lines)
        _draw_speed(axes["speed"], lines)
        _draw_norm(axes["norm"], lines)
        _draw_rate(axes["rate"], lines)
        _draw_balance(axes["balance"], lines)
        for name in ("loss", "speed", "norm", "rate", "balance"):
            _finish_steps(axes[name], lines)
        _draw_loads(figure, axes["load"], loads, map_height)
    return figure


@contextmanager
def _styled() -> Iterator[None]:
    """Draw in this module's style, whatever the user's matplotlibrc says."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def _subtitle(lines: Sequence[dict[str, Any]]) -> str:
    last = lines[-1]
    tokens = sum(line["tokens"] for line in lines)
    trained = duration(sum(line["step_ms"] for line in lines) / 1e3)
    return f"step {last['step']:,}: ce_loss {last['ce_loss']:.3f} after {tokens:,} tokens and {trained} of training"


def _draw_loss(ax: Axes, lines: Sequence[dict[str, Any]]) -> None:
    ax.set_title("loss (nats per token)")
    ce, mtp, total = (Series.of(lines, key) for key in ("ce_loss", "mtp_loss", "loss"))
    _line(ax, total, _GREY, "total", width=1.1, raw=False)
    if any(mtp.values):
        _line(ax, mtp, _ORANGE, "multi-token prediction")
    _line(ax, ce, _BLUE, "next token (ce_loss)")
    validation = Series.of(lines, "validation_loss")
    if validation.steps:
        ax.plot(validation.steps, validation.values, "D-", color=_INK, ms=5, lw=0.9, label="validation", zorder=4)
    _scale(ax, [*ce.values, *mtp.values, *total.values, *validation.values])
    if ax.lines:  # on the title's line, where it covers nothing
        ax.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, borderpad=0.0, columnspacing=1.4)


def _draw_speed(ax: Axes, lines: Sequence[dict[str, Any]]) -> None:
    from matplotlib.ticker import EngFormatter

    mfu = sorted(Series.of(lines, "mfu").values)
    ax.set_title("tokens/s" + (f" (median MFU {mfu[len(mfu) // 2]:.1%})" if mfu else ""))
    speed = Series.of(lines, "tokens_per_second")
    _line(ax, speed, _GREEN, "tokens/s")
    ax.yaxis.set_major_formatter(EngFormatter(sep=""))
    _from_zero(ax, speed.values)


def _draw_norm(ax: Axes, lines: Sequence[dict[str, Any]]) -> None:
    ax.set_title("gradient norm before clipping")
    norm = Series.of(lines, "grad_norm")
    _line(ax, norm, _PURPLE, "grad_norm")
    _scale(ax, norm.values)


def _draw_rate(ax: Axes, lines: Sequence[dict[str, Any]]) -> None:
    rate = Series.of(lines, "lr")
    largest = max(rate.values, default=0.0)
    exponent = math.floor(math.log10(largest)) if largest > 0 else 0
    ax.set_title(f"learning rate (1e{exponent})")
    _line(ax, rate, _INK, "lr", smooth=False)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value / 10.0**exponent:g}")
    _from_zero(ax, rate.values)


def _draw_balance(ax: Axes, lines: Sequence[dict[str, Any]]) -> None:
    ax.set_title("max violation (largest load / mean - 1)")
    violation = Series.of(lines, "max_violation")
    _line(ax, violation, _ORANGE, "max_violation")
    _from_zero(ax, violation.values)


def _draw_loads(figure: Figure, ax: Axes, loads: StepLoads | None, height: float) -> None:
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.ticker import MaxNLocator

    if loads is None or not loads.layers:
        ax.set_title("expert load: none recorded")
        ax.set_axis_off()
        return
    relative = [layer.relative for layer in loads.layers]
    largest = max(map(max, relative))
    top = min(max(2.0, largest), 4.0)
    ax.set_title(f"expert load at step {loads.step:,} (tokens / mean of the layer)")
    ax.grid(visible=False)
    norm = TwoSlopeNorm(1.0, vmin=0.0, vmax=top)
    image = ax.imshow(relative, aspect="auto", interpolation="nearest", cmap="RdBu_r", norm=norm)
    ax.set_xlabel("expert")
    ax.set_ylabel("layer")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=16, integer=True, min_n_ticks=1))
    _name_layers(ax, loads)
    bar = figure.colorbar(image, ax=ax, pad=0.01, aspect=height / 0.12, extend="max" if largest > top else "neither")
    bar.outline.set_visible(False)
    bar.set_ticks([0.0, 0.5, 1.0, *(value for value in (2.0, 3.0, 4.0) if value <= top)])


def _name_layers(ax: Axes, loads: StepLoads) -> None:
    """Label about 16 rows of the heat map, those of MTP modules always."""
    every = -(-len(loads.layers) // 16)
    decoder = sum(not layer.mtp for layer in loads.layers)
    rows = [row for row in range(0, decoder, every) if row + every <= decoder or decoder == len(loads.layers)]
    rows += range(decoder, len(loads.layers))
    ax.set_yticks(rows, [f"{loads.layers[row].layer}{' MTP' if loads.layers[row].mtp else ''}" for row in rows])


def _line(
    ax: Axes, series: Series, color: str, label: str, *, width: float = 1.8, raw: bool = True, smooth: bool = True
) -> None:
    """Draw a smoothed line over the faint raw one; few steps as points."""
    if not series.steps:
        return
    drawn = series.thinned()
    if len(drawn.steps) <= _FEW:
        ax.plot(drawn.steps, drawn.values, "o-", color=color, lw=width, ms=4, label=label)
        return
    if raw and smooth:
        ax.plot(drawn.steps, drawn.values, color=color, lw=0.8, alpha=0.3)
    over = drawn.smoothed() if smooth else drawn
    ax.plot(over.steps, over.values, color=color, lw=width, label=label)


def _from_zero(ax: Axes, values: Sequence[float]) -> None:
    ax.set_ylim(0.0, 1.08 * max(values, default=0.0) or 1.0)


def _scale(ax: Axes, values: Sequence[float]) -> None:
    """Make the y axis logarithmic where values differ widely."""
    if values and min(values) > 0 and max(values) > _WIDE * min(values):
        ax.set_yscale("log")


def _finish_steps(ax: Axes, lines: Sequence[dict[str, Any]]) -> None:
    """Give an axis over the steps of the run the same range as every other."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    first, last = lines[0]["step"], lines[-1]["step"]
    margin = max(0.5, 0.015 * (last - first)) if last - first < _FEW else 0.015 * (last - first)
    ax.set_xlim(first - margin, last + margin)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    ax.set_xlabel("step")
    if not ax.lines:
        ax.text(0.5, 0.5, "no finite values", transform=ax.transAxes, ha="center", color=_GREY)
