"""The random state of a process as tensors: torch (CPU and this device), numpy and Python."""

from __future__ import annotations

import random
from typing import Any

import torch

__all__ = ["get_random_state", "seed_random_state", "set_random_state"]


def seed_random_state(seed: int, rank: int) -> None:
    """Start all global generators of this process from the seed of the job and the rank; nothing in core draws on them.

    Plugins may: two runs of one recipe draw the same then, and no two ranks do.
    """
    import numpy

    torch_seed, numpy_seed, python_seed = (
        numpy.random.SeedSequence([seed, rank]).generate_state(3, numpy.uint64).tolist()
    )
    torch.manual_seed(torch_seed)
    numpy.random.seed(numpy_seed % 2**32)  # noqa: NPY002  plugins may use it
    random.seed(python_seed)


def get_random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return copies of the states of all global generators of this process, by name; CPU tensors, no pickles."""
    import numpy

    _, keys, position, has_gauss, cached = numpy.random.get_state()  # noqa: NPY002  plugins may use it
    version, internal, gauss = random.getstate()
    assert version == 3
    state = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(numpy.asarray(keys).astype(numpy.int64)),
        "numpy_rest": torch.tensor([position, has_gauss, cached], dtype=torch.float64),
        "python": torch.tensor(internal, dtype=torch.int64),
        "python_gauss": torch.tensor([gauss is not None, gauss or 0.0], dtype=torch.float64),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Restore what `get_random_state` returned."""
    import numpy

    torch.set_rng_state(state["torch"])
    position, has_gauss, cached = state["numpy_rest"].tolist()
    keys = state["numpy"].numpy().astype(numpy.uint32)
    numpy.random.set_state(("MT19937", keys, int(position), int(has_gauss), cached))  # noqa: NPY002
    has, gauss = state["python_gauss"].tolist()
    internal: tuple[Any, ...] = tuple(state["python"].tolist())
    random.setstate((3, internal, gauss if has else None))
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
