"""Phases run alone or together, and the trace sees them in both directions."""

from __future__ import annotations

import pytest
import torch

from moeframe import trace


class Spans:
    def __init__(self):
        self.events = []

    def enter(self, place):
        self.events.append(("enter", place))

    def leave(self, place):
        self.events.append(("leave", place))


@pytest.fixture
def ids():
    return torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(0))


def places(spans, direction):
    return [
        (place.layer, place.phase) for kind, place in spans.events if kind == "enter" and place.direction == direction
    ]


def test_every_phase_is_seen_forward_and_in_reverse_backward(make_model, ids):
    model = make_model()
    spans = Spans()
    with trace.listen(spans), trace.at(step=7, micro_batch=2):
        output = model(ids)
        (output.logits.sum() + output.mtp_logits[0].sum()).backward()
    layers = [(layer, phase) for layer in range(4) for phase in ("attend", "dispatch", "experts", "combine")]
    dense = {(0, "dispatch")}
    forward = places(spans, "forward")
    assert forward == [(-1, "embed"), *[one for one in layers if one not in dense], (-1, "head")]
    # the embedding's input needs no gradient, and a dense layer's combine has no routed rows
    expected = [one for one in forward if one not in {(-1, "embed"), (0, "combine")}]
    assert places(spans, "backward") == expected[::-1]
    assert {(place.step, place.micro_batch) for _, place in spans.events} == {(7, 2)}


def test_who_follows_hears_where_each_backward_begins_and_nothing_changes(make_model, ids):
    model = make_model()
    output = model(ids)
    (output.logits.sum() + output.mtp_logits[0].sum()).backward()
    wanted = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    spans = Spans()
    with trace.listen(spans, backward="begin"), trace.at(step=7, micro_batch=2):
        output = model(ids)
        (output.logits.sum() + output.mtp_logits[0].sum()).backward()
    assert all(
        torch.equal(a, b)
        for a, b in zip(wanted, (p.grad for p in model.parameters() if p.grad is not None), strict=True)
    )
    begun = places(spans, "backward")
    layers = [layer for layer, _ in begun if layer >= 0]
    assert layers == sorted(layers, reverse=True)
    assert begun[0] == (-1, "head")
    assert begun[-1] == (-1, "embed")
    assert {phase for layer, phase in begun if layer == 1} == {"attend", "dispatch", "experts", "combine"}
    left = [place.phase for kind, place in spans.events if kind == "leave" and place.direction == "backward"]
    assert left == ["embed"]


def test_spans_are_closed_in_the_order_they_were_opened(make_model, ids):
    model = make_model()
    spans = Spans()
    with trace.listen(spans):
        model(ids).logits.sum().backward()
    open_places = []
    for kind, place in spans.events:
        if kind == "enter":
            open_places.append(place)
        else:
            assert open_places.pop() == place
    assert not open_places


def test_listening_changes_no_value_and_no_gradient(make_model, ids):
    model = make_model()
    model(ids).logits.sum().backward()
    wanted = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    model.zero_grad()
    with trace.listen(Spans()):
        model(ids).logits.sum().backward()
    for name, gradient in wanted.items():
        assert torch.equal(model.get_parameter(name).grad, gradient), name


def test_the_four_phases_one_by_one_are_the_block(make_model, ids):
    model = make_model(num_nextn_predict_layers=0)
    hidden = model.embedding(ids)
    for block in model.blocks.values():
        attended = block.run_attend(hidden, None, None, None)
        received = block.run_dispatch(attended)
        outputs = block.run_experts(attended, received)
        by_hand = block.run_combine(attended, received, *outputs)
        hidden = block(hidden)
        assert torch.equal(hidden, by_hand)


def test_two_micro_batches_can_be_between_dispatch_and_combine_c58(make_model, ids):
    block = make_model().blocks["1"]
    inputs = [torch.randn(1, 5, 32, dtype=torch.float64), torch.randn(2, 3, 32, dtype=torch.float64)]
    attended = [block.run_attend(x, None, None, None) for x in inputs]
    received = [block.run_dispatch(one) for one in attended]
    outputs = [block.run_experts(*pair) for pair in zip(attended, received, strict=True)]
    for x, one, two, out in reversed(list(zip(inputs, attended, received, outputs, strict=True))):
        assert torch.equal(block.run_combine(one, two, *out), block(x))


def test_modules_return_no_views(make_model, ids):
    """fully_shard hangs its hooks on what units take and return."""
    model = make_model()
    seen = []

    def check(module, inputs, output):
        outputs = output if isinstance(output, tuple) else (output,)
        seen.append(type(module).__name__)
        for tensor in outputs:
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                assert not tensor._is_view(), type(module).__name__

    model.step_state.begin(loss_tokens=1, mtp_tokens=(1,), valid_tokens=1)
    units = {"Attend", "Router", "DenseExperts", "MixtureExperts", "Head", "Embedding", "MTPModule"}
    for module in model.modules():
        if type(module).__name__ in units:
            module.register_forward_hook(check)
    model(ids)
    assert set(seen) == units
