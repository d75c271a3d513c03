"""The dispatcher and the compute backend by themselves, with inputs whose result is known: which of them is wrong, how.

T tokens, K choices, D width, R rows, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from moeframe.config.schema import Recipe
from moeframe.protocols.compute import ComputeContext
from moeframe.train.assemble import Job
from moeframe.verify.reference.compute import ReferenceCompute, attend
from moeframe.verify.rehearsal import Jobs

__all__ = ["probe_parts"]

_CLOSE: Final = 1e-9
_CALLS: Final = 3
_ROUNDED: Final = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def probe_parts(recipe: Recipe, plugins: Sequence[str]) -> list[str]:
    """Return a sentence for each part that is wrong, ``part: what is wrong``. Collective over the ranks of a recipe."""
    with Jobs().open(recipe, plugins) as job:
        return [*_dispatcher(job), *_compute(job)]


def _close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    scale = float(wanted.abs().max()) if wanted.numel() else 0.0
    return found.shape == wanted.shape and bool(((found - wanted).abs() <= _CLOSE * max(scale, 1e-12)).all())


def _rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype).to(tensor.dtype)


@dataclass(frozen=True, kw_only=True)
class _Call:
    """Input of one rank in one call; `grad_TD` is the gradient of its output."""

    x_TD: torch.Tensor
    gates_TK: torch.Tensor
    ids_TK: torch.Tensor
    grad_TD: torch.Tensor

    def output(self, *, gates_TK: torch.Tensor | None = None, x_TD: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``sum over choices of gate * w_e * x``, the experts being factors w_e."""
        gates_TK = self.gates_TK if gates_TK is None else gates_TK
        x_TD = self.x_TD if x_TD is None else x_TD
        factors_TK = torch.where(self.ids_TK >= 0, gates_TK * _factor(self.ids_TK), 0)
        return factors_TK.sum(1, keepdim=True) * x_TD


def _factor(ids: torch.Tensor) -> torch.Tensor:
    return 1.0 + ids.double() / 7.0


def _call(job: Job, number: int, ep_rank: int) -> _Call:
    """Return a call's input, the same on whichever rank it is asked for."""
    config, train = job.recipe.model, job.recipe.train
    generator = torch.Generator().manual_seed(1000 * number + ep_rank)
    tokens, width, choices = train.micro_batch_size * train.seq_len, config.hidden_size, config.num_experts_per_tok

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    order_TE = torch.rand(tokens, config.n_routed_experts, generator=generator).argsort(1)
    ids_TK = order_TE[:, :choices].contiguous()
    if job.composition.dispatcher.traits.supports_capacity_drop:
        ids_TK[number::5] = -1
    return _Call(
        x_TD=normal(tokens, width), gates_TK=normal(tokens, choices), ids_TK=ids_TK, grad_TD=normal(tokens, width)
    )


def _dispatcher(job: Job) -> Iterator[str]:
    """Run calls one after the other; yield the first thing that is wrong."""
    name, ep = job.composition.dispatcher.offer.name, job.meshes.size("ep")
    local = job.recipe.model.n_routed_experts // ep
    first = job.meshes.rank("ep") * local
    earlier: list[torch.Tensor] = []
    for number in range(_CALLS):
        calls = [_call(job, number, rank) for rank in range(ep)]
        own = calls[job.meshes.rank("ep")]
        x_TD, gates_TK = own.x_TD.clone().requires_grad_(), own.gates_TK.clone().requires_grad_()
        weights_E = _factor(torch.arange(first, first + local, dtype=torch.float64)).requires_grad_()
        dispatched = job.dispatcher.dispatch(x_TD, gates_TK, job.dispatcher.layout(own.ids_TK))
        rows = int(dispatched.counts_E.sum())
        factors_R = torch.zeros(dispatched.rows_RD.shape[0], dtype=torch.float64)
        factors_R = torch.cat([weights_E.repeat_interleave(dispatched.counts_E), factors_R[rows:]])
        out_TD = job.dispatcher.combine(
            dispatched.rows_RD * (dispatched.gates_R.double() * factors_R)[:, None], dispatched
        )
        torch.autograd.backward(out_TD, own.grad_TD)
        kept_TD = out_TD.detach().clone()
        problem = _wrong_output(own, kept_TD, earlier)
        problem = problem or _wrong_gradients(calls, own, (x_TD, gates_TK, weights_E), first, ep)
        if problem is not None:
            yield f"dispatcher {name!r}: {problem}"
            return
        earlier.append(kept_TD)


def _wrong_output(own: _Call, out_TD: torch.Tensor, earlier: Sequence[torch.Tensor]) -> str | None:
    wanted_TD = own.output()
    if _close(out_TD, wanted_TD):
        return None
    for dtype_name, dtype in _ROUNDED.items():
        if _close(out_TD, own.output(gates_TK=_rounded(own.gates_TK, dtype))):
            return f"gates are rounded to {dtype_name} on their way"
        if _close(out_TD, own.output(x_TD=_rounded(own.x_TD, dtype))):
            return f"tokens are rounded to {dtype_name} on their way"
    wrong_T = (out_TD - wanted_TD).abs().amax(1) > _CLOSE * wanted_TD.abs().max()
    for before_TD in reversed(earlier):
        if _close((out_TD - wanted_TD)[wrong_T], before_TD[wrong_T]):
            return "stale rows: combine adds to what an earlier call left in its buffer"
        if _close(out_TD[wrong_T], before_TD[wrong_T]):
            return "stale rows: combine returns rows that an earlier call left in its buffer"
    return f"the output of call {len(earlier) + 1} is wrong" + (", that of the first is right" if earlier else "")


def _wrong_gradients(
    calls: Sequence[_Call], own: _Call, leaves: tuple[torch.Tensor, ...], first: int, ep: int
) -> str | None:
    x_TD, gates_TK, weights_E = leaves
    there_TK = own.ids_TK >= 0
    wanted_x = torch.where(there_TK, own.gates_TK * _factor(own.ids_TK), 0).sum(1, keepdim=True) * own.grad_TD
    products_T = (own.x_TD * own.grad_TD).sum(1, keepdim=True)
    wanted_gates = torch.where(there_TK, _factor(own.ids_TK) * products_T, 0)
    wanted_weights = torch.zeros_like(weights_E)
    for call in calls:
        products_TK = (call.x_TD * call.grad_TD).sum(1, keepdim=True) * call.gates_TK
        for expert in range(len(weights_E)):
            wanted_weights[expert] += products_TK[call.ids_TK == first + expert].sum()
    for what, leaf, wanted in (
        ("tokens", x_TD, wanted_x),
        ("gates", gates_TK, wanted_gates),
        ("experts", weights_E, wanted_weights),
    ):
        found = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        if not _close(found, wanted):
            visible = wanted.abs() > 1e-3 * wanted.abs().max()
            ratio = float((found[visible] / wanted[visible]).median()) if visible.any() else float("nan")
            factor = " = ep" if abs(ratio - ep) < _CLOSE and ep > 1 else ""
            return f"the gradient of the {what} comes back x{ratio:.3f}{factor}"
    return None


def _compute(job: Job) -> Iterator[str]:
    """Compare every building block with its formula."""
    name = job.composition.compute.offer.name
    context = ComputeContext(precision=job.composition.precision, device=job.meshes.device)
    backend: Any = job.composition.compute.build(context)
    reference = ReferenceCompute(context)
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    config = job.recipe.model
    width, inner = config.hidden_size, config.moe_intermediate_size
    x_TD, rows_RD, gates_R = normal(6, width), normal(7, width), normal(7)
    counts_E = torch.tensor([3, 0, 2])
    blocks: Mapping[str, tuple[Callable[[Any], torch.nn.Module], tuple[Any, ...]]] = {
        "linear": (lambda of: of.linear(width, inner), (x_TD,)),
        "rms_norm": (lambda of: of.rms_norm(width, 1e-6), (x_TD,)),
        "grouped_experts": (lambda of: of.grouped_experts(3, width, inner), (rows_RD, gates_R, counts_E, None)),
    }
    for block, (build, inputs) in blocks.items():
        own, wanted = build(backend), build(reference)
        for parameter in wanted.parameters():
            parameter.data = normal(*parameter.shape)
        own.load_state_dict(wanted.state_dict())
        problem = _wrong_block(own, wanted, inputs)
        if problem is not None:
            yield f"compute {name!r}: {block}{problem}"
    queries, keys, values = normal(2, 2, 5, 6), normal(2, 2, 5, 6), normal(2, 2, 5, 4)
    hidden = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    hidden[0, :, 2:, 0] = False
    for mask in (None, hidden):
        found = backend.attention(queries, keys, values, scale=0.3, mask=mask)
        if not _close(found, attend(queries, keys, values, scale=0.3, mask=mask)):
            yield f"compute {name!r}: attention is wrong {'with' if mask is not None else 'without'} a mask"


def _wrong_block(own: torch.nn.Module, wanted: torch.nn.Module, inputs: tuple[Any, ...]) -> str | None:
    """Return what is wrong with a block's output or gradients, to be read after its name."""
    out, gradients = _run(own, inputs)
    right, right_gradients = _run(wanted, inputs)
    if not _close(out, right):
        for dtype_name, dtype in _ROUNDED.items():
            for number, what in enumerate(("input", "gates")):
                changed = [*inputs]
                if number < len(changed) and isinstance(changed[number], torch.Tensor):
                    changed[number] = _rounded(changed[number], dtype)
                if _close(out, _run(wanted, tuple(changed))[0]):
                    return f" rounds its {what} to {dtype_name}"
        return " is wrong"
    wrong = [name for name, gradient in gradients.items() if not _close(gradient, right_gradients[name])]
    return f" has a wrong gradient of {', '.join(wrong)}" if wrong else None


def _run(module: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    leaves = [
        part.clone().requires_grad_() if isinstance(part, torch.Tensor) and part.is_floating_point() else part
        for part in inputs
    ]
    module.zero_grad(set_to_none=True)
    out: torch.Tensor = module(*leaves)
    out.backward(torch.linspace(1, 2, out.numel(), dtype=out.dtype).view_as(out))  # type: ignore[no-untyped-call]
    named = {**dict(module.named_parameters()), "its input": leaves[0]}
    return out.detach(), {
        name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in named.items()
    }
