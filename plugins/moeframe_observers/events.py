"""TensorBoard files of one run: scalars every step, expert loads now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import TwoSlopeNorm
from torch.utils.tensorboard import SummaryWriter

from moeframe.protocols.loads import LayerLoad

__all__ = ["EventWriter", "heat_map"]

_TAGS: Final = {
    "loss": "loss/total",
    "ce_loss": "loss/ce",
    "mtp_loss": "loss/mtp",
    "balance_loss": "loss/balance",
    "validation_loss": "loss/validation",
    "grad_norm": "optimizer/grad_norm",
    "lr": "optimizer/lr",
    "tokens": "speed/tokens",
    "tokens_per_second": "speed/tokens_per_second",
    "step_ms": "speed/step_ms",
    "mfu": "speed/mfu",
    "peak_memory_bytes": "memory/peak_bytes",
    "max_violation": "expert_load/max_violation",
    "dead_experts": "expert_load/dead_experts",
    "dropped_tokens": "expert_load/dropped_tokens",
}
_MAP_WIDTH: Final = 1024
_MAX_CELL: Final = 32


class EventWriter:
    """Writes steps in order; each is on disk when `write` returns.

    Tags: the metrics in groups (`loss/ce`, `speed/tokens_per_second`; a metric unknown here as `other/<name>`). Every
    `loads_every` steps also, for each MoE layer, a histogram of load / mean over its experts and its max violation,
    and a picture of all layers; 0: never.
    """

    def __init__(self, directory: Path, *, loads_every: int) -> None:
        """Write to `directory`, which is made with the first step."""
        self._directory = directory
        self._loads_every = loads_every
        self._writer: SummaryWriter | None = None

    def write(self, step: int, metrics: Mapping[str, float | str | None], loads: Sequence[LayerLoad]) -> None:
        """Write a step. The first one hides itself and later ones of an earlier attempt in the same directory.

        Raises:
            OSError: the files cannot be written.
        """
        if self._writer is None:
            self._writer = SummaryWriter(str(self._directory), purge_step=step)
        when = datetime.fromisoformat(str(metrics["time"])).timestamp()
        for key, value in metrics.items():
            if key != "step" and isinstance(value, int | float):
                self._writer.add_scalar(_TAGS.get(key, f"other/{key}"), value, step, walltime=when)
        if loads and self._loads_every and step % self._loads_every == 0:
            self._write_loads(self._writer, step, loads, when)
        self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()

    @staticmethod
    def _write_loads(writer: SummaryWriter, step: int, loads: Sequence[LayerLoad], when: float) -> None:
        for layer in loads:
            name = f"layer_{layer.layer:03}{'_mtp' if layer.mtp else ''}"
            writer.add_histogram(f"expert_load_by_layer/{name}", np.array(layer.relative), step, walltime=when)
            writer.add_scalar(f"max_violation_by_layer/{name}", layer.max_violation, step, walltime=when)
        writer.add_image("expert_load/layers_by_experts", heat_map(loads), step, walltime=when, dataformats="HWC")


def heat_map(loads: Sequence[LayerLoad]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return a picture (height, width, 3): a row of cells for each layer, a cell for each expert.

    White is the mean of the layer, blue less, red more; the darkest red is 4 times the mean, or above.
    """
    relative = np.array([layer.relative for layer in loads])
    colours = colormaps["RdBu_r"](TwoSlopeNorm(1.0, vmin=0.0, vmax=4.0)(relative), bytes=True)[..., :3]
    cell = max(1, min(_MAX_CELL, _MAP_WIDTH // relative.shape[1]))
    return np.asarray(colours, dtype=np.uint8).repeat(cell, axis=0).repeat(cell, axis=1)
