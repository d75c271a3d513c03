"""Transformer Engine as far as the plugin calls it, on a CPU: the same calls, forms, rules and roundings.

A quantised tensor holds real E4M3 values and scales, in the row form, the transposed form, or both; a product takes the
form that its layout reads, and refuses one that is not there or has the wrong sizes. Every call is noted.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from moeframe_transformer_engine import plugin
from moeframe_transformer_engine.loading import TransformerEngine
from moeframe_transformer_engine.options import TransformerEngineOptions

from moeframe.hooks import ComputeOffer, hookimpl

E4M3_MAX = 448.0


def _tiles(x: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise (R, C) with a power-of-2 scale for each `rows` x 128 values; return values and scales, both (R, C)."""
    height, width = x.shape
    padded = torch.zeros(-(-height // rows) * rows, -(-width // 128) * 128)
    padded[:height, :width] = x.float()
    blocks = padded.view(padded.shape[0] // rows, rows, padded.shape[1] // 128, 128)
    peak = blocks.abs().amax(dim=(1, 3), keepdim=True)
    scale = torch.exp2(torch.floor(torch.log2(E4M3_MAX / peak.clamp(min=1e-30)))).where(peak > 0, torch.ones(()))
    values = (blocks * scale).to(torch.float8_e4m3fn)
    inverse = (1 / scale).expand_as(blocks).reshape(padded.shape)[:height, :width]
    return values.view(torch.uint8).reshape(padded.shape)[:height, :width].clone(), inverse.clone()


class Quantised:
    """FP8 forms of (R, C): `row` with tiles along C, `column`, transposed, with tiles along R."""

    def __init__(self, row, column):
        self.forms = [row, column]

    def update_usage(self, *, rowwise_usage, columnwise_usage):
        for place, kept in enumerate((rowwise_usage, columnwise_usage)):
            assert not kept or self.forms[place] is not None, "a form cannot be made from the other"
            if not kept:
                self.forms[place] = None

    def read(self, *, transposed):
        form = self.forms[transposed]
        assert form is not None, "this form was not made"
        values, inverse = form
        assert [size % multiple for size, multiple in zip(values.shape, (8, 16), strict=True)] == [0, 0]
        return values.view(torch.float8_e4m3fn).float() * inverse


class Quantizer:
    def __init__(self, dtype, *, rowwise, columnwise, amax_epsilon, force_pow_2_scales, block_scaling_dim):
        assert (dtype, force_pow_2_scales, amax_epsilon) == ("e4m3", True, 0.0)
        self.rowwise, self.columnwise, self.dim = rowwise, columnwise, block_scaling_dim

    def __call__(self, x):
        assert x.dim() == 2
        assert x.is_contiguous()
        rows = 1 if self.dim == 1 else 128
        return Quantised(
            _tiles(x, rows) if self.rowwise else None, _tiles(x.T.contiguous(), rows) if self.columnwise else None
        )


def _prepare_for_saving(*operands):
    tensors = []
    for operand in operands:
        for form in operand.forms:
            tensors += [None, None] if form is None else list(form)
        operand.forms = [None, None]
    return tensors, list(operands)


def _restore_from_saved(shells, saved):
    for place, shell in enumerate(shells):
        four = saved[4 * place : 4 * place + 4]
        shell.forms = [tuple(pair) if pair[0] is not None else None for pair in (four[:2], four[2:])]
    return shells


class Fake:
    """The engine, and `calls`: (name, layout) of every product so far."""

    def __init__(self):
        self.calls: list[tuple[str, str]] = []
        self.engine = TransformerEngine(
            SimpleNamespace(
                prepare_for_saving=_prepare_for_saving,
                restore_from_saved=_restore_from_saved,
                Float8BlockQuantizer=Quantizer,
                is_fp8_block_scaling_available=lambda *, return_reason: (True, ""),
            ),
            SimpleNamespace(general_gemm=self.gemm, general_grouped_gemm=self.grouped),
            SimpleNamespace(TE_DType={torch.bfloat16: "bf16"}),
            SimpleNamespace(
                split_quantize=lambda x, splits, quantizers: [
                    quantizer(part) for quantizer, part in zip(quantizers, x.split(splits), strict=True)
                ],
                DType=SimpleNamespace(kFloat8E4M3="e4m3"),
                rmsnorm_fwd=self.norm,
                rmsnorm_bwd=self.norm_gradients,
            ),
        )

    def _one(self, a, b, layout):
        first, second = layout
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype == torch.bfloat16
            assert a.is_contiguous()
            assert b.is_contiguous()
            a_ = a if first == "T" else a.T
            b_ = b.T if second == "T" else b
            return b_.float() @ a_.float().T
        # A quantised factor is read along the summed dimension, whatever the layout.
        return b.read(transposed=second == "T") @ a.read(transposed=first == "N").T

    def gemm(self, A, B, out_dtype=None, out=None, layout="TN"):
        self.calls.append(("gemm", layout))
        assert (out.dtype, out.is_contiguous()) == (out_dtype, True)
        out.copy_(self._one(A, B, layout))

    def grouped(
        self, A, B, out, quantization_params, out_dtype, *, layout, m_splits, use_split_accumulator, single_output
    ):
        self.calls.append(("grouped", layout))
        assert len(A) == len(B) == len(quantization_params)
        assert len(m_splits) == len(A)
        results = out[0].split(m_splits) if single_output else out
        for a, b, result in zip(A, B, results, strict=True):
            assert (result.dtype, result.is_contiguous()) == (out_dtype, True)
            result.copy_(self._one(a, b, layout))

    def norm(self, x, weight, eps, ln_out, quantizer, otype, sm_margin, zero_centered):
        assert (x.dim(), x.dtype, x.is_contiguous()) == (2, weight.dtype, True)
        inverse = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
        return ln_out.copy_(x.float() * inverse * weight.float()), None, inverse.reshape(-1)

    def norm_gradients(self, grad, x, inverse, weight, sm_margin, zero_centered):
        assert grad.dim() == x.dim() == 2
        g, h, r = grad.float(), x.float(), inverse.unsqueeze(-1)
        scaled = g * weight.float()
        along = (scaled * h * r).mean(-1, keepdim=True)
        return (r * (scaled - h * r * along)).to(x.dtype), (g * h * r).sum(0).to(weight.dtype)


def build(options, context):
    from moeframe_transformer_engine.compute import TransformerEngineCompute

    return TransformerEngineCompute(options, context, Fake().engine)


@hookimpl
def moeframe_offer_computes():
    """Offer the backend on this double, for jobs on a CPU."""
    return [
        ComputeOffer(
            name="te_on_cpu",
            summary="compute te on a double of Transformer Engine",
            build=build,
            traits=plugin._traits,
            options=TransformerEngineOptions,
        )
    ]
