"""What a beacon costs: ``python tests/benchmarks/beacon_cost.py [RECIPE] [--pairs N] [key=value ...]``.

Counts the events of a training step and times one of each kind alone, which is steadier than the difference of two step
times and is the whole cost where the host is what a step waits for; the pulse, which has a thread of its own, is timed
alone. With pairs, runs as many steps with a beacon and as many without in turns, and compares them too. Under torchrun
every rank does so, and rank 0 prints.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from moeframe import trace
from moeframe.config.load import read_recipe
from moeframe.debug.probes import TorchProbe
from moeframe.model.phases import run_phase
from moeframe.trace import Place
from moeframe.train.assemble import Job, assemble
from moeframe.train.trainer import Trainer
from moeframe.watch.beacon import PULSE_S, Beacon, lit

RECIPE = Path(__file__).parents[2] / "recipes" / "deepseek_v3" / "tiny.yaml"
DEFAULTS = ("data.name=synthetic", "train.seq_len=256", "train.steps=1000000", "checkpoint.final=false")
WARM_UP = 5
BLOCK = 4
ROUNDS = 15


def seconds(call: Callable[[], object], number: int) -> float:
    """Return the time of a call: of several rounds the quickest, since others use the machine too."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(number):
            call()
        rounds.append((time.perf_counter() - began) / number)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a full queue would be timed in place of the host
    return min(rounds)


def phase_seconds() -> float:
    """Return the time of a phase that does next to nothing, forward and backward."""
    x = torch.ones(1, requires_grad=True)

    def both() -> None:
        (y,) = run_phase("experts", 3, lambda tensor: (tensor * 2,), x)
        torch.autograd.grad(y, x)

    return seconds(both, 200)


class Counted:
    """Counts the spans of a step."""

    def __init__(self) -> None:
        self.forward = self.backward = 0

    def enter(self, place: Place) -> None:
        """Count."""
        if place.direction == "backward":
            self.backward += 1
        else:
            self.forward += 1

    def leave(self, place: Place) -> None:
        """Do nothing."""


def beacon_on(stack: ExitStack, folder: Path, job: Job) -> Beacon:
    """Light a beacon as `moeframe run` does, until the stack is closed."""
    rank, size = job.world.rank, job.world.world_size
    beacon = stack.enter_context(lit(folder, rank, {"rank": rank, "world_size": size}))
    beacon.probe(TorchProbe(job.meshes.device))
    return beacon


def step_seconds(trainer: Trainer, step: int) -> float:
    """Return the time of a step, the device's part included."""
    began = time.perf_counter()
    trainer.step(step)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def compared(trainer: Trainer, job: Job, folder: Path, first: int, pairs: int) -> tuple[float, float]:
    """Return the mean difference that a beacon makes to a step, in percent, and its standard error.

    A pair is `BLOCK` steps with a beacon and as many without. The first step of each is left out: a beacon just
    lit makes the device's events that the following steps use again.
    """
    differences = []
    gc.collect()
    step = first
    for pair in range(pairs):
        times = {}
        for lighted in (False, True) if pair % 2 else (True, False):
            with ExitStack() as stack:
                if lighted:
                    beacon_on(stack, folder, job)
                step_seconds(trainer, step)
                times[lighted] = statistics.median(step_seconds(trainer, step + n) for n in range(1, 1 + BLOCK))
                step += 1 + BLOCK
        differences.append(100 * (times[True] / times[False] - 1))
    kept = sorted(differences)[pairs // 10 : pairs - pairs // 10]  # without the outliers of a shared machine
    return statistics.mean(kept), statistics.stdev(kept) / len(kept) ** 0.5


def main(arguments: list[str]) -> None:
    """Print a line, and one more with pairs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("given", nargs="*")
    parser.add_argument("--pairs", type=int, default=0)
    asked = parser.parse_args(arguments)
    recipe = next((Path(one) for one in asked.given if "=" not in one), RECIPE)
    overrides = [one for one in asked.given if "=" in one]
    with tempfile.TemporaryDirectory() as name, assemble(read_recipe(recipe, [*DEFAULTS, *overrides])) as job:
        folder = Path(name)
        trainer = Trainer(job, progress=False)
        for step in range(WARM_UP):
            trainer.step(step)
        counted = Counted()
        with trace.listen(counted, backward="begin"):
            trainer.step(WARM_UP)
        step_s = statistics.median(step_seconds(trainer, WARM_UP + 1 + step) for step in range(10))
        alone = phase_seconds()
        with ExitStack() as stack:
            beacon = beacon_on(stack, folder, job)
            trainer.step(WARM_UP + 11)
            pulse = seconds(beacon.pulse, 100)
            # Forward and backward of a phase: a span, hooks on its outputs, where its backward begins, device events.
            phase = phase_seconds() - alone
        share = 100 * (max(counted.forward, counted.backward) * phase / step_s + pulse / PULSE_S)
        lines = [
            f"torch {torch.__version__}, {job.meshes.device.type}: a step of {step_s * 1e3:.1f} ms has "
            f"{counted.forward} phases forward and {counted.backward} backward, {phase * 1e6:.2f} us for both; a pulse "
            f"takes {pulse * 1e6:.0f} us every {PULSE_S} s: {share:.3f} % of the step"
        ]
        if asked.pairs:
            mean, error = compared(trainer, job, folder, WARM_UP + 12, asked.pairs)
            lines.append(
                f"{asked.pairs} times {BLOCK} steps with and as many without in turns: {mean:+.3f} +- {error:.3f} % "
                "(one sigma)"
            )
        if job.world.rank == 0:
            sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main(sys.argv[1:])
