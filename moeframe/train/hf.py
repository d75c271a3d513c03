"""`load_hf`: a model from a Hugging Face directory, with the reference backends, in one process."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch

from moeframe.errors import UserInputError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.model.deepseek_v3 import DeepSeekV3
from moeframe.model.hf_load import HfSource
from moeframe.model.plan import fill_model
from moeframe.protocols.compute import ComputeContext
from moeframe.protocols.dispatcher import DispatcherContext
from moeframe.protocols.precision import Precision

__all__ = ["REFERENCE", "load_hf"]

REFERENCE: Final = MappingProxyType({"dispatcher": "local", "compute": "torch"})
"""The backends of the oracle (design: one process, no communication, plain torch), by kind."""

_PRECISIONS: Final = {
    torch.float32: Precision.of("float32"),
    torch.float64: Precision.of("float64"),
    # Weights in bfloat16 too, unlike in training; router and correction bias stay in float32.
    torch.bfloat16: Precision(parameters="bfloat16", compute="bfloat16", reduce="float32"),
}


def load_hf(
    path: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> DeepSeekV3:
    """Load a model of the DeepSeek-V3 family, in training mode.

    ``model(input_ids)`` returns an object with `logits` (B, S, V) and `mtp_logits`, a tuple with the logits of each MTP
    module, or None. Runs in one process, with the backends that `REFERENCE` names.

    Args:
        path: directory with config.json and safetensors in the hub's naming; FP8 weights are dequantised.
        dtype: float32, float64 or bfloat16; None: the one that config.json names, or else float32.
        device: where the model lies; None: the CPU.

    Raises:
        UserInputError: the directory is not such a model, or the dtype is not supported.
        PluginError: a backend that `REFERENCE` names is not to be had.
    """
    source = HfSource(path)
    precision = _precision(dtype, source.directory_config.dtype)
    where = torch.device("cpu" if device is None else device)
    config = source.config
    catalog = Catalog(build_plugin_manager())
    dispatcher = _build(
        catalog,
        "dispatcher",
        DispatcherContext(
            ep_axis="ep",
            ep_size=1,
            ep_rank=0,
            ep_group=None,
            num_experts=config.n_routed_experts,
            hidden_size=config.hidden_size,
            top_k=config.num_experts_per_tok,
            max_tokens=config.max_position_embeddings,
            dtype=precision.dtype("compute"),
            device=where,
        ),
    )
    compute = _build(catalog, "compute", ComputeContext(precision=precision, device=where))
    with torch.device("meta"):
        model = DeepSeekV3(config, compute, dispatcher, precision=precision)
    fill_model(model, where, source=source)
    return model


def _build(catalog: Catalog, kind: str, context: Any) -> Any:
    """Build the reference backend of a kind with its default options."""
    offer = catalog.resolve(kind, REFERENCE[kind])
    return offer.build(offer.options(), context)


def _precision(dtype: torch.dtype | None, named: str | None) -> Precision:
    supported = {str(known).removeprefix("torch."): known for known in _PRECISIONS}
    if dtype is None:
        dtype = supported.get(named or "float32")
        if dtype is None:
            raise UserInputError(f"config.json names the dtype {named!r}. Pass dtype: {', '.join(supported)}.")
    if dtype not in _PRECISIONS:
        raise UserInputError(f"dtype = {dtype} is not supported. Use {', '.join(supported)}.")
    return _PRECISIONS[dtype]
