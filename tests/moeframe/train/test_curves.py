from __future__ import annotations

import itertools
import json
import math
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeframe.protocols.loads import LayerLoad
from moeframe.train.curves import Series, build_figure, draw, try_to_draw
from moeframe.train.loads import LoadsFile, StepLoads
from moeframe.train.run_directory import RunDirectory

PANELS = {"loss", "speed", "norm", "rate", "balance", "load"}


def line(step: int, **more: Any) -> dict[str, Any]:
    """Return a line of metrics.jsonl whose values tell the metrics apart."""
    return {
        "step": step, "loss": 5.0 - step / 1000, "ce_loss": 3.0 - step / 1000, "balance_loss": 0.001,
        "mtp_loss": 4.0 - step / 1000, "grad_norm": 1.0 + step, "lr": 3e-4, "tokens": 128,
        "tokens_per_second": 1000.0 * step, "step_ms": 128.0, "mfu": None, "max_violation": 0.5, "dead_experts": 0,
        "dropped_tokens": 0, "peak_memory_bytes": 1, "time": "2026-01-01T00:00:00+00:00", **more,
    }  # fmt: skip


LOADS = StepLoads(
    step=3,
    layers=(
        LayerLoad(layer=1, mtp=False, tokens_per_expert=(6, 2, 0, 0)),
        LayerLoad(layer=2, mtp=True, tokens_per_expert=(2, 2, 2, 2)),
    ),
)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "quickstart")


def write(run_dir: RunDirectory, lines: list[dict[str, Any]], loads: StepLoads | None = LOADS) -> None:
    run_dir.metrics_file.write_text("".join(json.dumps(one) + "\n" for one in lines))
    if loads is not None:
        file = LoadsFile(run_dir.loads_file, every=1)
        file.add(loads)
        file.close()


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def panels(figure: Figure) -> dict[str, Axes]:
    return {str(ax.get_label()): ax for ax in figure.axes if ax.get_label() in PANELS}


def drawn(ax: Axes, label: str) -> list[tuple[float, float]]:
    (found,) = [one for one in ax.lines if one.get_label() == label]
    return [(float(x), float(y)) for x, y in zip(found.get_xdata(), found.get_ydata(), strict=True)]


def test_a_run_leaves_a_whole_picture_of_sensible_size(run_dir: RunDirectory) -> None:
    write(run_dir, [line(step) for step in range(1, 4)])
    assert try_to_draw(run_dir) == str(run_dir.curves_file)
    width, height = png_size(run_dir.curves_file)
    assert 1200 <= width <= 2000
    assert 700 <= height <= 1600
    assert [path.name for path in run_dir.path.glob(".*.part")] == []


def test_few_steps_are_drawn_as_they_are() -> None:
    figure = build_figure([line(1), line(2, validation_loss=3.5), line(3)], LOADS, title="mine")
    found = panels(figure)
    assert found.keys() == PANELS
    assert drawn(found["loss"], "next token (ce_loss)") == [(1, 2.999), (2, 2.998), (3, 2.997)]
    assert drawn(found["loss"], "multi-token prediction") == [(1, 3.999), (2, 3.998), (3, 3.997)]
    assert drawn(found["loss"], "total") == [(1, 4.999), (2, 4.998), (3, 4.997)]
    assert drawn(found["loss"], "validation") == [(2, 3.5)]
    assert drawn(found["speed"], "tokens/s") == [(1, 1000), (2, 2000), (3, 3000)]
    assert drawn(found["norm"], "grad_norm") == [(1, 2), (2, 3), (3, 4)]
    assert drawn(found["rate"], "lr") == [(1, 3e-4), (2, 3e-4), (3, 3e-4)]
    assert drawn(found["balance"], "max_violation") == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_every_panel_says_what_it_shows_and_in_which_unit() -> None:
    found = panels(build_figure([line(1, mfu=0.4), line(2, mfu=0.5), line(3, mfu=0.42)], LOADS, title="mine"))
    titles = {name: ax.get_title(loc="left") for name, ax in found.items()}
    assert titles == {
        "loss": "loss (nats per token)",
        "speed": "tokens/s (median MFU 42.0%)",
        "norm": "gradient norm before clipping",
        "rate": "learning rate (1e-4)",
        "balance": "max violation (largest load / mean - 1)",
        "load": "expert load at step 3 (tokens / mean of the layer)",
    }
    assert {ax.get_xlabel() for name, ax in found.items() if name != "load"} == {"step"}


def test_the_title_names_the_run_and_what_it_cost() -> None:
    title = build_figure([line(step) for step in range(1, 1001)], None, title="quickstart  x").get_suptitle()
    assert title == "quickstart  x\nstep 1,000: ce_loss 2.000 after 128,000 tokens and 2:08 of training"


def test_the_heat_map_shows_each_layer_in_multiples_of_its_mean() -> None:
    ax = panels(build_figure([line(3)], LOADS, title="mine"))["load"]
    (image,) = ax.images
    assert image.get_array().tolist() == [[3.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["1", "2 MTP"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("expert", "layer")


@pytest.mark.parametrize("mtp", [0, 1])
def test_as_many_layers_as_deepseek_v3_has_are_labelled_without_crowding(mtp: int) -> None:
    layers = tuple(
        LayerLoad(layer=layer, mtp=layer >= 61, tokens_per_expert=(1,) * 256) for layer in range(3, 61 + mtp)
    )
    ax = panels(build_figure([line(1)], StepLoads(step=1, layers=layers), title="mine"))["load"]
    rows = [int(row) for row in ax.get_yticks()]
    assert len(rows) <= 17
    assert min(after - before for before, after in itertools.pairwise(rows)) >= 4
    assert ax.get_yticklabels()[0].get_text() == "3"
    assert (ax.get_yticklabels()[-1].get_text() == "61 MTP") == bool(mtp)


@pytest.mark.parametrize("loads", [None, StepLoads(step=1, layers=())])
def test_a_run_without_recorded_loads_says_so(loads: StepLoads | None) -> None:
    ax = panels(build_figure([line(1)], loads, title="mine"))["load"]
    assert ax.get_title(loc="left") == "expert load: none recorded"


def test_many_steps_are_smoothed_over_the_raw_line() -> None:
    noisy = [line(step, ce_loss=2.0 + (-1) ** step) for step in range(1, 401)]
    ax = panels(build_figure(noisy, None, title="mine"))["loss"]
    smooth = [value for _, value in drawn(ax, "next token (ce_loss)")]
    assert max(abs(value - 2.0) for value in smooth[20:]) < 0.1
    raw = [one for one in ax.lines if list(one.get_ydata()) == [entry["ce_loss"] for entry in noisy]]
    assert len(raw) == 1
    assert raw[0].get_alpha() < 0.5


def test_smoothing_follows_a_straight_descent_and_keeps_the_steps() -> None:
    falling = Series(steps=tuple(range(1, 201)), values=tuple(10.0 - step / 100 for step in range(1, 201)))
    smooth = falling.smoothed()
    assert smooth.steps == falling.steps
    assert smooth.values[:195] == pytest.approx(falling.values[:195])


def test_a_long_run_is_thinned_to_means_of_neighbours() -> None:
    thin = Series(steps=tuple(range(1, 11)), values=tuple(float(step) for step in range(1, 11))).thinned(most=4)
    assert thin.values == (2.0, 5.0, 8.0, 10.0)
    assert thin.steps == (2, 5, 8, 10)


def test_what_is_null_or_not_finite_leaves_a_gap_only(run_dir: RunDirectory) -> None:
    lines = [line(1), line(2, ce_loss=math.nan, grad_norm=math.inf), line(3)]
    assert Series.of(lines, "mfu") == Series(steps=(), values=())
    write(run_dir, lines)
    assert draw(run_dir)
    found = panels(build_figure(lines, None, title="mine"))
    assert [step for step, _ in drawn(found["loss"], "next token (ce_loss)")] == [1, 3]
    assert [step for step, _ in drawn(found["norm"], "grad_norm")] == [1, 3]


def test_a_run_that_diverged_at_once_is_drawn_and_says_so(run_dir: RunDirectory) -> None:
    nan = dict.fromkeys(("loss", "ce_loss", "mtp_loss", "grad_norm", "balance_loss"), math.nan)
    lines = [line(step, **nan) for step in range(1, 4)]
    write(run_dir, lines)
    assert draw(run_dir)
    found = panels(build_figure(lines, None, title="mine"))
    assert [text.get_text() for text in found["loss"].texts] == ["no finite values"]
    assert list(found["speed"].texts) == []


def test_values_that_differ_widely_get_a_logarithmic_axis() -> None:
    steep = panels(build_figure([line(1, grad_norm=50.0), line(2, grad_norm=1.0)], None, title="mine"))
    flat = panels(build_figure([line(1, grad_norm=2.0), line(2, grad_norm=1.0)], None, title="mine"))
    assert (steep["norm"].get_yscale(), flat["norm"].get_yscale()) == ("log", "linear")


def test_a_model_without_mtp_has_no_line_for_it() -> None:
    found = panels(build_figure([line(1, mtp_loss=0.0), line(2, mtp_loss=0.0)], None, title="mine"))
    assert "multi-token prediction" not in {one.get_label() for one in found["loss"].lines}


def test_a_run_that_trained_no_step_has_no_picture(run_dir: RunDirectory) -> None:
    assert try_to_draw(run_dir) == "not drawn, no step was trained"
    assert not run_dir.curves_file.exists()


def test_a_failure_to_draw_is_said_and_logged_and_raises_nothing(run_dir: RunDirectory) -> None:
    write(run_dir, [line(1)])
    run_dir.curves_file.mkdir()
    words = try_to_draw(run_dir)
    assert words.startswith("not drawn, IsADirectoryError")
    log = run_dir.log_dir / "curves.log"
    assert str(log) in words
    assert "Traceback" in log.read_text()
    assert list(run_dir.path.glob(".*.part")) == []


def test_the_users_matplotlib_settings_change_nothing_and_are_not_changed(run_dir: RunDirectory) -> None:
    import matplotlib as mpl

    write(run_dir, [line(1)])
    assert draw(run_dir)
    plain = png_size(run_dir.curves_file)
    with mpl.rc_context({"savefig.dpi": 10, "savefig.bbox": "tight", "text.usetex": True, "backend": "pdf"}):
        assert draw(run_dir)
        assert mpl.rcParams["savefig.dpi"] == 10
    assert png_size(run_dir.curves_file) == plain


def test_the_module_imports_neither_torch_nor_matplotlib() -> None:
    program = "import sys, moeframe.train.curves; assert not {'torch', 'matplotlib', 'numpy'} & set(sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
