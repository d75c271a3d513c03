"""What a beacon costs: ``python tests/benchmarks/beacon_cost.py [RECIPE] [key=value ...]``, one process.

Counts the events of a training step and the time that one takes, which is steadier than the difference of two step
times; the pulse, which has a thread of its own, is timed alone. Prints the share of the step.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from moeframe import trace
from moeframe.config.load import read_recipe
from moeframe.debug.probes import TorchProbe
from moeframe.trace import Place
from moeframe.train.assemble import assemble
from moeframe.train.trainer import Trainer
from moeframe.watch.beacon import PULSE_S, Beacon, lit

RECIPE = Path(__file__).parents[2] / "recipes" / "deepseek_v3" / "tiny.yaml"
DEFAULTS = ("data.name=synthetic", "train.seq_len=256", "train.steps=1000000", "checkpoint.final=false")


def seconds(call: Callable[[], None], number: int) -> float:
    """Return the median time of a call over several rounds."""
    rounds = []
    for _ in range(7):
        began = time.perf_counter()
        for _ in range(number):
            call()
        rounds.append((time.perf_counter() - began) / number)
    return statistics.median(rounds)


def span_seconds() -> float:
    """Return the time of a span that is followed, less that of one that is not."""

    def span() -> None:
        with trace.span(layer=3, phase="experts"):
            pass

    return seconds(span, 10_000)


def main(arguments: list[str]) -> None:
    """Print the table."""
    recipe = Path(arguments[0]) if arguments and not arguments[0].count("=") else RECIPE
    overrides = [one for one in arguments if "=" in one]
    with tempfile.TemporaryDirectory() as folder, assemble(read_recipe(recipe, [*DEFAULTS, *overrides])) as job:
        trainer = Trainer(job, progress=False)
        for step in range(3):
            trainer.step(step)
        steps = []
        for step in range(3, 13):
            began = time.perf_counter()
            trainer.step(step)
            steps.append(time.perf_counter() - began)
        silent = span_seconds()
        with lit(Path(folder), 0, {"rank": 0, "world_size": 1}) as beacon:
            beacon.probe(TorchProbe(job.meshes.device))
            trainer.step(13)
            before = beacon.count
            trainer.step(14)
            events = beacon.count - before
            followed = span_seconds()
            pulse = seconds(beacon.pulse, 100)
            hook = seconds(lambda: _begin(beacon), 10_000)
    step_s = statistics.median(steps)
    event = max((followed - silent) / 2, hook)
    share = 100 * (events * event / step_s + pulse / PULSE_S)
    sys.stdout.write(
        f"torch {torch.__version__}, {job.meshes.device.type}: a step of {step_s * 1e3:.1f} ms has {events} events of "
        f"{event * 1e6:.2f} us each; a pulse takes {pulse * 1e6:.0f} us every {PULSE_S} s: {share:.3f} % of the step\n"
    )


def _begin(beacon: Beacon) -> None:
    beacon.enter(Place(step=14, layer=3, phase="experts", direction="backward"))


if __name__ == "__main__":
    main(sys.argv[1:])
