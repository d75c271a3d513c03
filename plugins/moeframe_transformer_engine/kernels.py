"""Transformer Engine's kernels as this plugin calls them: the three products of a layer, and RMSNorm.

R rows, I and O widths of input and output. Transformer Engine's modules are not used: they own their weights under
other names, cast them in their own way, and free in the backward what a second backward over the same graph (weight
gradients apart) still reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import torch

from moeframe_transformer_engine.loading import TransformerEngine

__all__ = ["BFloat16Kernels", "BlockwiseKernels", "Kernels", "Operand"]

Operand: TypeAlias = Any
"""One factor of a product: a tensor, or Transformer Engine's quantised one."""

_Rebuild: TypeAlias = Callable[[Sequence[torch.Tensor], list[int]], list[Operand]]

FP8_ROW_MULTIPLE: Final = 16


class Kernels:
    """Products of matrices in one precision. Lists hold one entry for each expert that has rows, at least one row."""

    row_multiple: int = 1
    """Rows of every expert must be a multiple of this."""

    def __init__(self, engine: TransformerEngine) -> None:
        self.engine = engine

    def activations(self, x_RI: torch.Tensor, splits: list[int], *, for_weights: bool) -> list[Operand]:
        """Return the factors for `forward`, and with `for_weights` for `to_save`."""
        raise NotImplementedError

    def to_save(self, operands: list[Operand], x_RI: torch.Tensor) -> tuple[Iterable[torch.Tensor | None], _Rebuild]:
        """Return what `weight_gradient` needs of the input, as tensors and a function that makes factors of them."""
        raise NotImplementedError

    def weights(self, weights: list[torch.Tensor], dtype: torch.dtype, *, transposed: bool) -> list[Operand]:
        """Return the weights (O, I) as factors of `forward`, or `transposed` of `input_gradient`."""
        raise NotImplementedError

    def gradients(self, grad_RO: torch.Tensor, splits: list[int], *, transposed: bool) -> list[Operand]:
        """Return the output's gradient as factors of `input_gradient`, or `transposed` of `weight_gradient`."""
        raise NotImplementedError

    def forward(
        self, operands: list[Operand], weights: list[torch.Tensor], out_RO: torch.Tensor, splits: list[int]
    ) -> None:
        """Write x times the transposed weights to `out_RO`."""
        if splits:
            factors = self.weights(weights, out_RO.dtype, transposed=False)
            self._multiply(factors, operands, [out_RO], "TN", splits, joined=True)

    def input_gradient(
        self, grad_RO: torch.Tensor, weights: list[torch.Tensor], out_RI: torch.Tensor, splits: list[int]
    ) -> None:
        """Write the output's gradient times the weights to `out_RI`."""
        if splits:
            factors = self.weights(weights, out_RI.dtype, transposed=True)
            gradients = self.gradients(grad_RO, splits, transposed=False)
            self._multiply(factors, gradients, [out_RI], "NN", splits, joined=True)

    def weight_gradient(
        self, operands: list[Operand], grad_RO: torch.Tensor, out: list[torch.Tensor], splits: list[int]
    ) -> None:
        """Write the transposed gradient times the input to the matrices (O, I) of `out`."""
        if splits:
            gradients = self.gradients(grad_RO, splits, transposed=True)
            self._multiply(operands, gradients, out, "NT", splits, joined=False)

    def _multiply(
        self,
        a: list[Operand],
        b: list[Operand],
        out: list[torch.Tensor],
        layout: Literal["TN", "NN", "NT"],
        splits: list[int],
        *,
        joined: bool,
    ) -> None:
        """Run one product, or a group of them; `joined`: the group's results lie in one tensor."""
        if len(a) == 1:
            self.engine.general_gemm(a[0], b[0], out_dtype=out[0].dtype, out=out[0], layout=layout)
            return
        self.engine.general_grouped_gemm(
            a,
            b,
            out,
            [None] * len(a),
            out[0].dtype,
            layout=layout,
            m_splits=splits,
            single_output=joined,
            use_split_accumulator=True,
        )


class BFloat16Kernels(Kernels):
    """Factors in the dtype of the activations, sums in float32."""

    def activations(self, x_RI: torch.Tensor, splits: list[int], *, for_weights: bool) -> list[Operand]:  # noqa: ARG002
        """See `Kernels.activations`."""
        return list(torch.split(x_RI, splits)) if splits else []

    def to_save(self, operands: list[Operand], x_RI: torch.Tensor) -> tuple[Iterable[torch.Tensor | None], _Rebuild]:  # noqa: ARG002
        """See `Kernels.to_save`: the input as it is."""
        return [x_RI], lambda saved, splits: list(torch.split(saved[0], splits)) if splits else []

    def weights(self, weights: list[torch.Tensor], dtype: torch.dtype, *, transposed: bool) -> list[Operand]:  # noqa: ARG002
        """See `Kernels.weights`."""
        return [weight.to(dtype).contiguous() for weight in weights]

    def gradients(self, grad_RO: torch.Tensor, splits: list[int], *, transposed: bool) -> list[Operand]:  # noqa: ARG002
        """See `Kernels.gradients`."""
        return list(torch.split(grad_RO, splits))


class BlockwiseKernels(Kernels):
    """FP8 E4M3: 1x128 tiles along the summed dimension for activations and gradients, 128x128 blocks for weights."""

    row_multiple = FP8_ROW_MULTIPLE

    def activations(self, x_RI: torch.Tensor, splits: list[int], *, for_weights: bool) -> list[Operand]:
        """See `Kernels.activations`: tiles along I for `forward`, and along R for the weights' gradient."""
        return self._tiles(x_RI, splits, rowwise=True, columnwise=for_weights)

    def to_save(self, operands: list[Operand], x_RI: torch.Tensor) -> tuple[Iterable[torch.Tensor | None], _Rebuild]:  # noqa: ARG002
        """See `Kernels.to_save`: the input in FP8, with tiles along R only."""
        for operand in operands:
            operand.update_usage(rowwise_usage=False, columnwise_usage=True)
        tensors, shells = self.engine.prepare_for_saving(*operands)
        return tensors, partial(self._restored, shells)

    def _restored(self, shells: Any, saved: Sequence[torch.Tensor], splits: list[int]) -> list[Operand]:
        return list(self.engine.restore_from_saved(shells, list(saved))) if splits else []

    def weights(self, weights: list[torch.Tensor], dtype: torch.dtype, *, transposed: bool) -> list[Operand]:  # noqa: ARG002
        """See `Kernels.weights`; from the weights' own dtype."""
        quantizer = self.engine.block_quantizer(block_dim=2, rowwise=not transposed, columnwise=transposed)
        return [quantizer(weight.contiguous()) for weight in weights]

    def gradients(self, grad_RO: torch.Tensor, splits: list[int], *, transposed: bool) -> list[Operand]:
        """See `Kernels.gradients`."""
        return self._tiles(grad_RO, splits, rowwise=not transposed, columnwise=transposed)

    def _tiles(self, x: torch.Tensor, splits: list[int], *, rowwise: bool, columnwise: bool) -> list[Operand]:
        quantizers = [self.engine.block_quantizer(block_dim=1, rowwise=rowwise, columnwise=columnwise) for _ in splits]
        if len(splits) == 1:
            return [quantizers[0](x)]
        return list(self.engine.split_quantize(x, splits, quantizers)) if splits else []
