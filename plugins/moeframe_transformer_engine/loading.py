"""Imports Transformer Engine, and says what to do when that fails. Names what this plugin calls, and nothing else.

Userbuffers (`initialize_ub`, arguments `ub_*`) are never used: they make multicast objects.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any, Final

import torch

from moeframe.errors import PluginError
from moeframe_transformer_engine.installation import INSTALL, advice

__all__ = ["TransformerEngine", "load"]

_CALLED: Final = {
    "general_gemm": ("A", "B", "out_dtype", "layout", "out"),
    "general_grouped_gemm": (
        "A",
        "B",
        "out",
        "quantization_params",
        "out_dtype",
        "layout",
        "m_splits",
        "use_split_accumulator",
        "single_output",
    ),
}
"""Functions of `transformer_engine.pytorch.cpp_extensions`, and the parameters that are used."""


def load() -> TransformerEngine:
    """Import Transformer Engine.

    Raises:
        PluginError: it cannot be imported, or lacks what this plugin calls; says what to install.
    """
    try:
        pytorch = importlib.import_module("transformer_engine.pytorch")
        extensions = importlib.import_module("transformer_engine.pytorch.cpp_extensions")
        constants = importlib.import_module("transformer_engine.pytorch.constants")
        native = importlib.import_module("transformer_engine_torch")
    except Exception as error:
        raise PluginError(
            f"Transformer Engine cannot be imported beside torch {torch.__version__}: {type(error).__name__}: {error}. "
            f"{advice(error)}"
        ) from error
    try:
        engine = TransformerEngine(pytorch, extensions, constants, native)
    except AttributeError as error:
        raise PluginError(
            f"compute 'te' calls what this Transformer Engine does not have: {error}. {INSTALL}"
        ) from error
    for name, used in _CALLED.items():
        missing = set(used) - set(inspect.signature(getattr(extensions, name)).parameters)
        if missing:
            raise PluginError(
                f"compute 'te' calls {name} of Transformer Engine with {min(missing)}, which this version does not "
                f"take. {INSTALL}"
            )
    return engine


class TransformerEngine:
    """What this plugin calls of Transformer Engine.

    Raises:
        AttributeError: it is not there.
    """

    def __init__(self, pytorch: Any, extensions: Any, constants: Any, native: Any) -> None:
        self.general_gemm = extensions.general_gemm
        self.general_grouped_gemm = extensions.general_grouped_gemm
        self.split_quantize = native.split_quantize
        self.prepare_for_saving = pytorch.prepare_for_saving
        self.restore_from_saved = pytorch.restore_from_saved
        self._quantizer = pytorch.Float8BlockQuantizer
        self._e4m3 = native.DType.kFloat8E4M3
        self._fp8_support = pytorch.is_fp8_block_scaling_available
        self._dtypes = constants.TE_DType
        self._rms_norm = native.rmsnorm_fwd
        self._rms_norm_gradients = native.rmsnorm_bwd

    def require_blockwise_fp8(self) -> None:
        """Raise PluginError where this GPU or its libraries know no blockwise FP8."""
        able, reason = self._fp8_support(return_reason=True)
        if not able:
            raise PluginError(
                f"compute.options.precision=fp8_blockwise cannot be used on {torch.cuda.get_device_name()}: {reason} "
                "Use compute.options.precision=bfloat16, or GPUs of compute capability 9.0 or more."
            )

    def block_quantizer(self, *, block_dim: int, rowwise: bool, columnwise: bool) -> Any:
        """Return a function from a tensor to its FP8 form, with scales that are powers of 2.

        Args:
            block_dim: 1: a scale for 1x128 values; 2: one for 128x128.
            rowwise: make the form that products over the last dimension read.
            columnwise: make the transposed form, for products over the first dimension.
        """
        quantizer = self._quantizer(
            self._e4m3,
            rowwise=rowwise,
            columnwise=columnwise,
            amax_epsilon=0.0,
            force_pow_2_scales=True,
            block_scaling_dim=block_dim,
        )
        quantizer.internal = True
        return quantizer

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of x over its last dimension, and the inverse root mean square of each row, float32."""
        size = x.shape[-1]
        out = torch.empty_like(x)
        _, _, inverse = self._rms_norm(
            x.view(-1, size), weight, eps, out.view(-1, size), None, self._dtypes[x.dtype], 0, False
        )
        return out, inverse

    def rms_norm_gradients(
        self, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, inverse: torch.Tensor
    ) -> Sequence[torch.Tensor]:
        """Return the gradients of x and of the weight."""
        size = x.shape[-1]
        grad_x, grad_weight = self._rms_norm_gradients(grad.view(-1, size), x.view(-1, size), inverse, weight, 0, False)
        return grad_x.view(x.shape), grad_weight
