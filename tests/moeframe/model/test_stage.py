"""Stages: token-weighted losses that do not depend on how a batch is cut."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from moeframe.errors import ContractError
from moeframe.model.deepseek_v3 import DeepSeekV3, ModelPart, ModelStage
from moeframe.model.plan import fill_model
from moeframe.protocols.data import IGNORED, MicroBatch
from moeframe.protocols.precision import Precision

CPU = torch.device("cpu")


def ahead(tokens, steps):
    """Targets `steps` ahead of the inputs tokens[:, :-1]."""
    targets = F.pad(tokens[:, steps:], (0, steps), value=IGNORED)
    return targets[:, : tokens.shape[1] - 1]


def batch(tokens, *, depths=1, **more):
    return MicroBatch(
        input_ids=tokens[:, :-1],
        targets=ahead(tokens, 1),
        mtp_targets=tuple(ahead(tokens, depth + 1) for depth in range(1, depths + 1)),
        **more,
    )


def begin(model, *batches):
    def count(targets):
        return int(sum((one != IGNORED).sum() for one in targets))

    depths = model.config.num_nextn_predict_layers
    model.step_state.begin(
        loss_tokens=count(one.targets for one in batches),
        mtp_tokens=tuple(count(one.mtp_targets[depth] for one in batches) for depth in range(depths)),
        valid_tokens=int(sum(one.input_ids.numel() if one.valid is None else one.valid.sum() for one in batches)),
    )


def gradients(model):
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found


@pytest.fixture
def tokens():
    return torch.randint(0, 64, (4, 9), generator=torch.Generator().manual_seed(1))


def logits_with_loss(losses, targets):
    """Logits over two tokens with the given cross-entropy at every position whose target is 0."""
    wanted = torch.tensor(losses, dtype=torch.float64)
    return torch.stack([torch.zeros_like(wanted), torch.log(torch.expm1(wanted))], dim=-1)


def test_the_mean_is_over_tokens_not_over_micro_batches_c33(make_model):
    model = make_model(num_nextn_predict_layers=0)
    stage = ModelStage(model)
    model.step_state.begin(loss_tokens=10, mtp_tokens=(), valid_tokens=10)
    total = 0.0
    for losses in ([2.0], [10.0] * 9):
        targets = torch.zeros(1, len(losses), dtype=torch.int64)
        one = MicroBatch(input_ids=targets, targets=targets)
        total += stage.loss((logits_with_loss([losses], targets),), one).item()
    assert total == pytest.approx(9.2)
    assert stage.result().ce_sum.item() == pytest.approx(92.0)
    assert stage.result().ce_sum.item() == 0.0


def test_mtp_losses_are_averaged_over_depths_c55(make_model):
    model = make_model(num_nextn_predict_layers=2, mtp_loss_weight=0.3)
    stage = ModelStage(model)
    model.step_state.begin(loss_tokens=3, mtp_tokens=(2, 1), valid_tokens=3)
    targets = [torch.tensor([row]) for row in ([0, 0, 0], [0, 0, IGNORED], [0, IGNORED, IGNORED])]
    one = MicroBatch(input_ids=targets[0], targets=targets[0], mtp_targets=tuple(targets[1:]))
    output = tuple(logits_with_loss([[loss] * 3], None) for loss in (1.0, 2.0, 4.0))
    assert stage.loss(output, one).item() == pytest.approx(1.9)
    result = stage.result()
    assert result.ce_sum.item() == pytest.approx(3.0)
    assert result.mtp_sums.tolist() == pytest.approx([4.0, 4.0])


def test_loss_and_gradients_are_the_same_however_the_batch_is_cut(make_model, tokens):
    tokens[1, 4:] = 0
    model = make_model(num_nextn_predict_layers=2, aux_loss_alpha=0.1)
    stage = ModelStage(model)
    whole = batch(tokens, depths=2)
    whole.targets[0, :5] = IGNORED
    begin(model, whole)
    loss = stage.loss(stage.forward(None, whole), whole)
    loss.backward()
    wanted, counted, result = gradients(model), model.take_counters(), stage.result()

    total = 0.0
    for row in (slice(0, 1), slice(1, 4)):
        part = MicroBatch(
            input_ids=whole.input_ids[row],
            targets=whole.targets[row],
            mtp_targets=tuple(targets[row] for targets in whole.mtp_targets),
        )
        share = stage.loss(stage.forward(None, part), part)
        share.backward()
        total += share.item()
    assert total == pytest.approx(loss.item(), rel=1e-12)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=0, atol=1e-12 * wanted[name].abs().max().item())
    again, summed = model.take_counters(), stage.result()
    assert torch.equal(again.tokens_per_expert, counted.tokens_per_expert)
    torch.testing.assert_close(again.balance_sum, counted.balance_sum)
    torch.testing.assert_close(summed.mtp_sums, result.mtp_sums)


def test_two_pipeline_parts_compute_what_the_whole_computes(tiny, backends, make_model, tokens):
    whole_batch = batch(tokens)
    whole = make_model(seed=3)
    begin(whole, whole_batch)
    stage = ModelStage(whole)
    loss = stage.loss(stage.forward(None, whole_batch), whole_batch)
    loss.backward()
    wanted = gradients(whole)

    policy = Precision.of("float64")
    parts = []
    for part in (
        ModelPart(layers=range(2), has_embedding=True, has_head=False),
        ModelPart(layers=range(2, 3), has_embedding=False, has_head=True),
    ):
        with torch.device("meta"):
            model = DeepSeekV3(tiny, *backends(tiny, policy), precision=policy, part=part)
        fill_model(model, CPU, seed=3)
        begin(model, whole_batch)
        parts.append(ModelStage(model, index=len(parts), num_stages=2))
    first, last = parts
    hidden = first.forward(None, whole_batch)
    assert not hidden._is_view()
    split_loss = last.loss(last.forward(hidden, whole_batch), whole_batch)
    split_loss.backward()
    assert split_loss.item() == pytest.approx(loss.item(), rel=1e-14)
    found = gradients(first.module) | gradients(last.module)
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=0, atol=1e-13)
    assert first.result().mtp_sums.tolist() == [0.0]
    counters = [stage.module.take_counters().tokens_per_expert for stage in parts]
    assert torch.equal(sum(counters), whole.take_counters().tokens_per_expert)
    assert counters[0][1:].eq(0).all()
    assert counters[1][0].eq(0).all()


def test_a_loss_before_the_token_counts_are_known_is_refused(make_model, tokens):
    stage = ModelStage(make_model())
    one = batch(tokens)
    with pytest.raises(ContractError, match=r"StepState\.begin"):
        stage.loss(stage.forward(None, one), one)


def test_a_loss_without_targets_for_every_depth_is_refused(make_model, tokens):
    model = make_model()
    begin(model, batch(tokens))
    one = batch(tokens, depths=0)
    stage = ModelStage(model)
    with pytest.raises(ContractError, match="1 MTP depths"):
        stage.loss(stage.forward(None, one), one)


def test_a_batch_without_targets_gives_zero_loss_and_zero_gradients(make_model, tokens):
    model = make_model(aux_loss_alpha=0.0)
    stage = ModelStage(model)
    none = torch.full((4, 8), IGNORED)
    one = MicroBatch(input_ids=tokens[:, :-1], targets=none, mtp_targets=(none,))
    begin(model, one)
    loss = stage.loss(stage.forward(None, one), one)
    loss.backward()
    assert loss.item() == 0.0
    assert all(parameter.grad.eq(0).all() for parameter in model.parameters())


def test_evaluation_leaves_counters_alone(make_model, tokens):
    model = make_model().eval()
    one = batch(tokens)
    begin(model, one)
    with torch.no_grad():
        ModelStage(model).forward(None, one)
    assert model.take_counters().tokens_per_expert.sum() == 0
