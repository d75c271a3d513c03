"""What each check of the compute kit does, in one process. Failures are AssertionErrors that name what differs.

Formulas are worked out in float64. Distances are ``|a - b| / |b|`` of a tensor's norm. E experts, R rows, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from moeframe.protocols.compute import Compute, ComputeContext, ComputeTraits
from moeframe.protocols.precision import DtypeName, Precision
from moeframe.protocols.weight_gradients import postponing

if TYPE_CHECKING:
    from moeframe.hooks.offers import ComputeOffer

__all__ = [
    "ROWS",
    "Subject",
    "check_attention",
    "check_experts",
    "check_freed_inputs",
    "check_freed_outputs",
    "check_linear",
    "check_norm",
    "check_parameters",
    "check_postponed_weights",
]

ROWS: Final[Mapping[str, tuple[tuple[int, ...], int]]] = {
    "even": ((32, 32, 32), 0),
    "ragged": ((33, 0, 1), 0),
    "spare rows": ((16, 5, 0), 3),
    "one hot": ((0, 0, 48), 0),
    "no rows": ((0, 0, 0), 0),
    "only spare rows": ((0, 0, 0), 5),
}
"""Rows of each expert, and rows beyond them."""
_DISTANCE: Final[Mapping[DtypeName, float]] = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 0.03}
_HIDDEN, _WIDTH = 128, 64

Maker = Callable[[Compute], nn.Module]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The compute backend under test, as it travels to the rank.

    `distance`: the largest legal one; None: 1e-12 in float64, 1e-5 in float32, 0.03 in bfloat16.
    """

    offer: ComputeOffer
    options: Mapping[str, Any]
    device: str
    dtype: DtypeName
    distance: float | None = None

    @property
    def precision(self) -> Precision:
        """The precision policy."""
        return Precision.of(self.dtype)

    @property
    def traits(self) -> ComputeTraits:
        """Traits of the offer for these options and this dtype."""
        return self.offer.traits(self.offer.options(**self.options), self.precision)

    @property
    def bound(self) -> float:
        """The largest legal distance."""
        return _DISTANCE[self.dtype] if self.distance is None else self.distance

    def build(self) -> Compute:
        """Return the backend."""
        context = ComputeContext(precision=self.precision, device=torch.device(self.device))
        built: Compute = self.offer.build(self.offer.options(**self.options), context)
        return built

    def tensor(self, *shape: int, seed: int, high: bool = False) -> torch.Tensor:
        """Return normal numbers, the same on every device, in the compute dtype or in `high`."""
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return values.to(self.precision.dtype("high" if high else "compute")).to(self.device)

    def module(self, make: Maker, *, std: float = 0.1) -> nn.Module:
        """Return what `make` makes, with normal parameters."""
        with torch.device(self.device):
            module = make(self.build())
        for number, parameter in enumerate(module.parameters()):
            values = torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(100 + number), dtype=torch.float64
            )
            parameter.data.copy_(values * std)
        return module


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().double().cpu().requires_grad_()


def _close(subject: Subject, found: torch.Tensor | None, wanted: torch.Tensor, what: str) -> None:
    assert found is not None, f"{what} is missing"
    assert found.shape == wanted.shape, f"{what} has shape {tuple(found.shape)}, not {tuple(wanted.shape)}"
    here, right = found.detach().double().cpu(), wanted.detach()
    assert bool(here.isfinite().all()), f"{what} is not finite"
    size = right.norm().item()
    distance = (here - right).norm().item() / size if size else here.norm().item()
    assert distance <= subject.bound, f"{what} lies {distance:.2g} from the formula, more than {subject.bound:g}"


def _check(
    subject: Subject,
    module: nn.Module,
    call: Callable[..., torch.Tensor],
    formula: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor],
) -> None:
    """Compare output and every gradient with those of the formula, which takes inputs, then parameters."""
    parameters = dict(module.named_parameters())
    leaves = [tensor.requires_grad_() for tensor in inputs]
    exact = [_double(tensor) for tensor in (*leaves, *parameters.values())]
    wanted = formula(*exact)
    out = call(*leaves)
    assert out.dtype == leaves[0].dtype, f"the output has {out.dtype}, the input {leaves[0].dtype}"
    _close(subject, out, wanted, "the output")
    grad = subject.tensor(*out.shape, seed=7)
    torch.autograd.backward(out, grad)
    right = torch.autograd.grad(wanted, exact, grad.double().cpu(), allow_unused=True)
    named = [*((f"the gradient of input {n}", leaf) for n, leaf in enumerate(leaves)), *parameters.items()]
    for (name, tensor), gradient in zip(named, right, strict=True):
        _close(subject, tensor.grad, torch.zeros(tensor.shape) if gradient is None else gradient, name)


def check_parameters(subject: Subject) -> None:
    """Names, shapes and dtype of parameters, made on the device of the context, and that the parts are modules."""
    with torch.device("meta"):
        compute = subject.build()
        modules = [compute.linear(32, 16), compute.rms_norm(32, 1e-6), compute.grouped_experts(2, 32, 16)]
    found = [{name: tuple(p.shape) for name, p in module.named_parameters()} for module in modules]
    wanted = [{"weight": (16, 32)}, {"weight": (32,)}, {"gate_up_proj": (2, 32, 32), "down_proj": (2, 32, 16)}]
    assert found == wanted, f"parameters are {found}, not {wanted}"
    for parameter in (parameter for module in modules for parameter in module.parameters()):
        assert parameter.is_meta, f"a parameter was made on {parameter.device}, not on the device of the context"
        dtype = subject.precision.dtype("parameters")
        assert parameter.dtype == dtype, f"a parameter has {parameter.dtype}, not {dtype}"


def check_linear(subject: Subject, leading: tuple[int, ...]) -> None:
    """Any number of rows, none included."""
    linear = subject.module(lambda compute: compute.linear(_HIDDEN, _WIDTH))
    x = subject.tensor(*leading, _HIDDEN, seed=1)
    _check(subject, linear, linear, lambda x, weight: x @ weight.T, [x])


def check_norm(subject: Subject) -> None:
    """Against the formula, and that squares are added in float32: beside 256, ones are lost in bfloat16."""
    eps = 1e-3
    norm = subject.module(lambda compute: compute.rms_norm(_HIDDEN, eps), std=1.0)

    def formula(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight

    _check(subject, norm, norm, formula, [subject.tensor(2, 3, _HIDDEN, seed=1)])
    wide = subject.module(lambda compute: compute.rms_norm(4096, eps))
    x = torch.ones(1, 4096, dtype=subject.precision.dtype("compute"), device=subject.device)
    x[0, 0] = 16.0
    _check(subject, wide, wide, formula, [x])


def _experts(subject: Subject, counts: tuple[int, ...]) -> nn.Module:
    return subject.module(lambda compute: compute.grouped_experts(len(counts), _HIDDEN, _WIDTH))


def _by_hand(counts: tuple[int, ...]) -> Callable[..., torch.Tensor]:
    def formula(rows: torch.Tensor, gates: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        out = []
        sizes = [*counts, rows.shape[0] - sum(counts)]
        parts = zip(rows.split(sizes), gates.split(sizes), strict=True)  # type: ignore[no-untyped-call]  # torch's stub
        for expert, (x, gate) in enumerate(parts):
            if expert == len(counts):
                out.append(torch.zeros_like(x))
                continue
            left, right = (x @ gate_up[expert].T).chunk(2, dim=-1)
            out.append((F.silu(left) * right * gate.unsqueeze(-1)) @ down[expert].T)
        return torch.cat(out)

    return formula


def check_experts(subject: Subject, name: str, on_host: bool) -> None:  # noqa: FBT001  called by position
    """Rows pass their expert, spare rows nothing, whatever they hold; experts without rows get zero gradients."""
    counts, spare = ROWS[name]
    experts, used = _experts(subject, counts), sum(counts)
    rows = subject.tensor(used + spare, _HIDDEN, seed=1)
    gates = subject.tensor(used + spare, seed=2, high=True)
    rows[used:] = gates[used:] = math.nan
    counts_E = torch.tensor(counts, device=subject.device)

    def call(rows: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = experts(rows, gates, counts_E, counts if on_host else None)
        assert bool((out[used:] == 0).all()), "rows beyond the counts did not come back as zeros"
        return out

    _check(subject, experts, call, _by_hand(counts), [rows, gates])


def check_attention(subject: Subject, value_size: int, masked: bool) -> None:  # noqa: FBT001  called by position
    """Causal softmax of scaled scores, with and without a mask, values of another size than keys."""
    compute, scale = subject.build(), 0.3
    q, k, v = (subject.tensor(2, 3, 9, size, seed=seed) for seed, size in enumerate((16, 16, value_size)))
    mask = torch.ones(9, 9, dtype=torch.bool).tril().expand(2, 1, 9, 9).clone()
    if masked:
        mask[0, :, 4:, 1] = False

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.transpose(-1, -2) * scale).masked_fill(~mask, -math.inf).softmax(-1) @ v

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return compute.attention(q, k, v, scale=scale, mask=mask.to(subject.device) if masked else None)

    _check(subject, nn.Module(), call, formula, [q, k, v])


def _gradients(subject: Subject, spoil: Callable[[torch.Tensor, torch.Tensor], None]) -> list[torch.Tensor]:
    """Return every gradient of experts, when `spoil` gets the rows and the output between forward and backward."""
    counts, _ = ROWS["even"]
    experts = _experts(subject, counts)
    leaf = subject.tensor(sum(counts), _HIDDEN, seed=1).requires_grad_()
    rows = leaf * 1
    gates = subject.tensor(sum(counts), seed=2, high=True)
    out = experts(rows, gates, torch.tensor(counts, device=subject.device), counts)
    sent = out * 1
    spoil(rows, out)
    sent.backward(subject.tensor(*out.shape, seed=7))
    found = [leaf.grad, *(parameter.grad for parameter in experts.parameters())]
    return [gradient for gradient in found if gradient is not None]


def _overwrite(tensor: torch.Tensor) -> None:
    """Fill the memory with NaN behind autograd's back, as someone would who reuses it."""
    torch.Tensor.fill_(tensor.data, math.nan)


def check_freed_inputs(subject: Subject) -> None:
    """`saves_expert_input` is true where it must be."""
    wanted = _gradients(subject, lambda rows, out: None)  # noqa: ARG005
    found = _gradients(subject, lambda rows, out: _overwrite(rows))  # noqa: ARG005
    equal = all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert equal, "saves_expert_input is false, and the backward of the experts reads the rows"


def check_freed_outputs(subject: Subject) -> None:
    """`saves_expert_output` and `saves_norm_output` are true where they must be."""
    traits = subject.traits
    if not traits.saves_expert_output:
        wanted = _gradients(subject, lambda rows, out: None)  # noqa: ARG005
        found = _gradients(subject, lambda rows, out: _overwrite(out))  # noqa: ARG005
        equal = all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        assert equal, "saves_expert_output is false, and the backward of the experts reads what they returned"
    makers: list[tuple[bool, str, Maker]] = [
        (traits.saves_expert_output, "saves_expert_output", lambda compute: compute.linear(_HIDDEN, _HIDDEN)),
        (traits.saves_norm_output, "saves_norm_output", lambda compute: compute.rms_norm(_HIDDEN, 1e-6)),
    ]
    for saves, name, make in makers:
        if saves:
            continue
        results = []
        for spoiled in (False, True):
            module, x = subject.module(make), subject.tensor(32, _HIDDEN, seed=1).requires_grad_()
            out = module(x)
            sent = out * 1
            if spoiled:
                _overwrite(out)
            sent.backward(subject.tensor(32, _HIDDEN, seed=7))
            results.append([x.grad, *(parameter.grad for parameter in module.parameters())])
        for a, b in zip(*results, strict=True):
            assert a is not None, f"{name}: a gradient is missing"
            assert b is not None, f"{name}: a gradient is missing"
            assert torch.equal(a, b), f"{name} is false, and a backward reads what its forward returned"


def check_postponed_weights(subject: Subject) -> None:
    """`splits_expert_backward`: weight gradients wait for whoever postpones them, and are the same."""
    counts, _ = ROWS["ragged"]
    results = []
    for postponed in (False, True):
        experts = _experts(subject, counts)
        rows = subject.tensor(sum(counts), _HIDDEN, seed=1).requires_grad_()
        gates = subject.tensor(sum(counts), seed=2, high=True).requires_grad_()
        out = experts(rows, gates, torch.tensor(counts, device=subject.device), counts)
        grad = subject.tensor(*out.shape, seed=7)
        if postponed:
            with postponing() as waiting:
                out.backward(grad)
            early = [name for name, parameter in experts.named_parameters() if parameter.grad is not None]
            assert not early, f"splits_expert_backward is true, and {early[0]} has its gradient before it was asked for"
            waiting.run()
        else:
            out.backward(grad)
        results.append([rows.grad, gates.grad, *(parameter.grad for parameter in experts.parameters())])
    for a, b in zip(*results, strict=True):
        assert a is not None, "a gradient is missing"
        assert b is not None, "a postponed gradient is missing"
        assert torch.equal(a, b), "a gradient differs when weight gradients wait"
