"""Recomputed layers give the same bits, count once, replay their routing and hold less memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from moeframe.errors import ContractError
from moeframe.model.block import recompute_blocks
from moeframe.model.recompute import Decisions, Recompute, recomputed
from moeframe.testing.host_syncs import HostSyncs

MODES = {
    "attend": Recompute(phases=frozenset({"attend"})),
    "experts": Recompute(phases=frozenset({"experts"})),
    "both": Recompute(phases=frozenset({"attend", "experts"})),
    "full": Recompute(block=True),
}


@pytest.fixture
def ids():
    return torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(0))


def prepared(make_model, mode, **changes):
    model = make_model(**changes)
    model.step_state.begin(loss_tokens=16, mtp_tokens=(15,), valid_tokens=16)
    if mode is not None:
        recompute_blocks(model, mode)
    return model


def loss_of(model, ids):
    output = model(ids)
    return output.logits.square().sum() + sum(logits.square().sum() for logits in output.mtp_logits or ())


@dataclass
class Step:
    gradients: dict
    counters: object


def step(model, ids):
    loss_of(model, ids).backward()
    return Step({name: parameter.grad for name, parameter in model.named_parameters()}, model.take_counters())


@pytest.mark.parametrize("changes", [{}, {"capacity_factor": 0.5}, {"aux_loss_selection": "scores"}], ids=str)
@pytest.mark.parametrize("mode", list(MODES))
def test_gradients_and_counters_keep_their_bits_c16(make_model, ids, mode, changes) -> None:
    plain = step(prepared(make_model, None, **changes), ids)
    again = step(prepared(make_model, MODES[mode], **changes), ids)
    for name, gradient in plain.gradients.items():
        assert torch.equal(again.gradients[name], gradient), name
    assert plain.counters.tokens_per_expert.sum(1).tolist() == [32, 32, 28]  # 16 tokens x 2; MTP leaves 2 tokens out
    for name in ("tokens_per_expert", "balance_sum", "dropped"):
        assert torch.equal(getattr(again.counters, name), getattr(plain.counters, name)), name


@pytest.mark.parametrize("mode", ["attend", "full"])
def test_tied_scores_choose_the_same_experts_again_c23(make_model, ids, mode) -> None:
    """All scores are equal in the forward, and other experts would win by 1e-7 when the layer is recomputed."""
    models = [prepared(make_model, None), prepared(make_model, MODES[mode])]
    steps = []
    for model in models:
        routers = [block.attend.router for block in model._all_blocks() if block.attend.router is not None]
        for router in routers:
            router.weight.data.zero_()
            router.e_score_correction_bias.zero_()
        loss = loss_of(model, ids)
        for router in routers:
            router.e_score_correction_bias.copy_(torch.arange(8).remainder(3) * 1e-7)
        loss.backward()
        steps.append(Step({name: p.grad for name, p in model.named_parameters()}, model.take_counters()))
    for name, gradient in steps[0].gradients.items():
        assert torch.equal(steps[1].gradients[name], gradient), name
    assert torch.equal(steps[0].counters.tokens_per_expert, steps[1].counters.tokens_per_expert)


class Storages(TorchDispatchMode):
    """Knows which of the memory that operators returned in its block still lives; that of `known` does not count."""

    def __init__(self, known):
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._seen = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._known:
                    self._seen[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return out

    def living_bytes(self):
        return sum(size for storage, size in self._seen.values() if not storage.expired())


def with_gradients(model):
    """Return parameters, buffers and gradients, which are there before the step."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return [*model.parameters(), *model.buffers(), *(parameter.grad for parameter in model.parameters())]


def bytes_held(make_model, ids, mode):
    model = prepared(make_model, mode)
    with Storages(with_gradients(model)) as storages:
        loss = loss_of(model, ids)
    held = storages.living_bytes()
    del loss
    return held


def test_activation_memory_falls(make_model, ids) -> None:
    held = {name: bytes_held(make_model, ids, mode) for name, mode in {"none": None, **MODES}.items()}
    assert held["attend"] < 0.6 * held["none"]
    assert held["experts"] < 0.9 * held["none"]
    assert held["both"] < 0.4 * held["none"]
    assert held["full"] < 0.8 * held["both"]


def bytes_left(make_model, ids, mode):
    model = prepared(make_model, mode)
    known = with_gradients(model)
    with Storages(known) as storages:
        loss_of(model, ids).backward()
    model.take_counters()
    return storages.living_bytes()


def test_what_was_made_again_goes_with_the_graph(make_model, ids) -> None:
    assert bytes_left(make_model, ids, MODES["full"]) == bytes_left(make_model, ids, None)


@pytest.mark.parametrize("mode", ["both", "full"])
def test_recompute_adds_no_host_sync_c129(make_model, ids, mode) -> None:
    backward = []
    for chosen in (None, MODES[mode]):
        model = prepared(make_model, chosen, precision="float32")
        loss = loss_of(model, ids)
        with HostSyncs() as syncs:
            loss.backward()
        backward.append(syncs.calls)
    assert backward == [[], []]


@pytest.mark.parametrize("mode", ["both", "full"])
def test_nothing_is_recomputed_in_evaluation(make_model, ids, mode) -> None:
    model = prepared(make_model, MODES[mode])
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(ids).logits, prepared(make_model, None)(ids).logits)


def test_a_graph_that_is_used_twice_recomputes_once() -> None:
    """As a backward in two halves does: input gradients first, weight gradients later."""
    weight = torch.tensor([2.0], requires_grad=True)
    x = torch.tensor([3.0], requires_grad=True)
    runs = []

    def square(x):
        runs.append(1)
        return (x * weight).square()

    out = recomputed("region", square, x)
    assert torch.autograd.grad(out, x, retain_graph=True)[0].item() == 24.0
    assert torch.autograd.grad(out, weight)[0].item() == 36.0
    assert len(runs) == 2


def test_a_region_that_does_something_else_the_second_time_is_refused() -> None:
    x = torch.tensor([3.0], requires_grad=True)
    factors = [1, 2]

    def growing(x):
        for _ in range(factors.pop(0)):
            x = x.square()
        return x

    with pytest.raises(ContractError, match="the forward saved 1 tensors for the backward, and recomputing it 2"):
        recomputed("layer 7", growing, x).sum().backward()


def test_a_saved_tensor_of_another_shape_is_refused() -> None:
    sizes = [3, 2]

    def cut(x):
        return x[: sizes.pop(0)].square().sum()

    with pytest.raises(ContractError, match=r"layer 7: saved tensor 0 .* \(3,\), and recomputing it gave .* \(2,\)"):
        recomputed("layer 7", cut, torch.ones(4, requires_grad=True)).backward()


def test_an_input_that_was_changed_in_place_is_refused() -> None:
    x = torch.ones(2, requires_grad=True) * 1
    out = recomputed("layer 7", lambda x: x.exp().sum(), x)
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(ContractError, match="layer 7: input 0 was changed in place"):
        out.backward()


def test_decisions_are_made_once() -> None:
    decisions = Decisions()
    assert decisions.once("experts", lambda: 1) == 1
    assert decisions.once("experts", lambda: 2) == 1
    assert decisions.once("layout", lambda: 3) == 3
