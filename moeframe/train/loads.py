"""The load of every expert over a run: `loads.jsonl`. Importable without torch.

A line is one step, at every `train.loads_every` steps and at the last one, also when a signal ended the run::

    {"step": 50, "layers": [
        {"layer": 3, "mtp": false, "max_violation": 0.42, "tokens_per_expert": [31, 12, ...]}, ...]}

One entry for each MoE layer of the whole model, decoder layers before MTP modules; what `layer`, `mtp` and
`tokens_per_expert` mean stands at `LayerLoad`. Counts are summed over all ranks. A line of DeepSeek-V3 (59 MoE layers
of 256 experts) takes about 110 kB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeframe.model.config import DeepSeekV3Config
from moeframe.protocols.loads import LayerLoad
from moeframe.train.step_file import StepFile, read_last_step, read_steps

__all__ = ["LoadsFile", "StepLoads", "layer_loads", "read_last_loads", "read_loads"]


@dataclass(frozen=True, kw_only=True)
class StepLoads:
    """The loads of one step, by layer."""

    step: int
    layers: tuple[LayerLoad, ...]


def layer_loads(counts: Sequence[Sequence[int]], model: DeepSeekV3Config) -> tuple[LayerLoad, ...]:
    """Name the rows of (MoE layers of the model, experts), which stand in the order of the model's layers."""
    return tuple(
        LayerLoad(layer=layer, mtp=layer >= model.num_hidden_layers, tokens_per_expert=tuple(row))
        for layer, row in enumerate(counts, start=model.first_k_dense_replace)
    )


class LoadsFile:
    """Writes loads.jsonl."""

    def __init__(self, path: Path, *, every: int, keep_steps: int = 0) -> None:
        """Append a line every `every` steps to `path`, which keeps its first `keep_steps` steps."""
        self._file = StepFile(path, keep_steps=keep_steps)
        self._every = every
        self._unwritten: StepLoads | None = None

    def add(self, loads: StepLoads) -> None:
        """Take the loads of the next step; write them when they are due."""
        if loads.step % self._every:
            self._unwritten = loads
        else:
            self._write(loads)

    def close(self) -> None:
        """Write the last step unless it is written, and close the file."""
        if self._unwritten is not None:
            self._write(self._unwritten)
        self._file.close()

    def _write(self, loads: StepLoads) -> None:
        layers = [
            {
                "layer": one.layer,
                "mtp": one.mtp,
                "max_violation": round(one.max_violation, 6),
                "tokens_per_expert": one.tokens_per_expert,
            }
            for one in loads.layers
        ]
        self._file.write({"step": loads.step, "layers": layers})
        self._unwritten = None


def read_loads(path: Path) -> Iterator[StepLoads]:
    """Yield the lines of a loads.jsonl, none if it does not exist."""
    yield from map(_step_loads, read_steps(path))


def read_last_loads(path: Path) -> StepLoads | None:
    """Return the last line of a loads.jsonl, None if there is none."""
    last = read_last_step(path)
    return None if last is None else _step_loads(last)


def _step_loads(line: Mapping[str, Any]) -> StepLoads:
    layers = [
        LayerLoad(layer=one["layer"], mtp=one["mtp"], tokens_per_expert=tuple(one["tokens_per_expert"]))
        for one in line["layers"]
    ]
    return StepLoads(step=line["step"], layers=tuple(layers))
