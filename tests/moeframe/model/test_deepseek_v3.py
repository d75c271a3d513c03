"""The whole model: padding, forced routing, MTP, host syncs, refusals."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from moeframe.errors import ContractError
from moeframe.model.deepseek_v3 import DeepSeekV3
from moeframe.model.mtp import look_ahead, valid_ahead
from moeframe.protocols.precision import Precision


@pytest.fixture
def ids():
    return torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(0))


def test_later_tokens_change_nothing_before_them(make_model, ids):
    model = make_model()
    other = ids.clone()
    other[:, 5:] = 1
    one, two = model(ids), model(other)
    torch.testing.assert_close(one.logits[:, :5], two.logits[:, :5], rtol=0, atol=1e-14)
    torch.testing.assert_close(one.mtp_logits[0][:, :4], two.mtp_logits[0][:, :4], rtol=0, atol=1e-14)
    assert not torch.equal(one.mtp_logits[0][:, 4], two.mtp_logits[0][:, 4])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing_for_real_tokens_and_counts_nowhere_c17(make_model, ids, side):
    model = make_model(num_nextn_predict_layers=2)
    wanted = model(ids)
    counted = model.take_counters()
    padding = torch.randint(0, 64, (2, 3))
    parts, real = ([padding, ids], slice(3, None)) if side == "left" else ([ids, padding], slice(0, 8))
    valid = torch.zeros(2, 11, dtype=torch.bool)
    valid[:, real] = True
    output = model(torch.cat(parts, dim=1), valid=valid)
    torch.testing.assert_close(output.logits[:, real], wanted.logits, rtol=0, atol=1e-12)
    for depth in range(2):
        meaningful = slice(0, 7 - depth)
        torch.testing.assert_close(
            output.mtp_logits[depth][:, real][:, meaningful],
            wanted.mtp_logits[depth][:, meaningful],
            rtol=0,
            atol=1e-12,
        )
    again = model.take_counters()
    assert torch.equal(again.tokens_per_expert, counted.tokens_per_expert)
    torch.testing.assert_close(again.balance_sum, counted.balance_sum)
    assert output.logits.isfinite().all()


def test_padding_gets_no_gradient(make_model, ids):
    model = make_model(num_nextn_predict_layers=0)
    valid = torch.ones(2, 8, dtype=torch.bool)
    valid[:, 6:] = False
    ids = ids.clamp(max=40)
    ids[:, 6:] = 50
    (model(ids, valid=valid).logits[:, :6] ** 2).sum().backward()
    assert model.embedding.weight.grad[50].eq(0).all()
    assert model.embedding.weight.grad[ids[0, 0]].ne(0).any()


def test_forced_experts_replace_the_choice_in_every_layer(make_model, ids):
    model = make_model()
    forced = torch.tensor([5, 2]).expand(2, 8, 2)
    model(ids, expert_ids=forced)
    counts = model.take_counters().tokens_per_expert
    assert counts[:, [2, 5]].tolist() == [[16, 16], [16, 16], [14, 14]]
    assert counts.sum() == 2 * (16 + 16 + 14)


def test_forced_experts_that_repeat_are_refused_c05(make_model, ids):
    with pytest.raises(ContractError, match="token 0 names expert 1"):
        make_model()(ids, expert_ids=torch.ones(2, 8, 2, dtype=torch.int64))


def test_mtp_looks_one_token_further_with_each_depth():
    embedded = torch.arange(1.0, 5.0).view(1, 4, 1)
    assert look_ahead(embedded, 1).flatten().tolist() == [2, 3, 4, 0]
    assert look_ahead(embedded, 2).flatten().tolist() == [3, 4, 0, 0]
    assert valid_ahead(None, 2, embedded).tolist() == [[True, True, False, False]]
    gap = torch.tensor([[True, True, False, True]])
    assert valid_ahead(gap, 1, embedded).tolist() == [[True, False, False, False]]


def test_positions_without_a_next_token_count_nowhere_in_mtp(make_model, ids):
    model = make_model(num_nextn_predict_layers=2)
    model(ids)
    assert model.take_counters().tokens_per_expert.sum(1).tolist() == [32, 32, 28, 24]


def test_chained_mtp_modules_feed_each_other_and_share_embedding_and_head(make_model, ids):
    model = make_model(num_nextn_predict_layers=2)
    model(ids).mtp_logits[1][:, :6].sum().backward()
    for name in ("embedding.weight", "head.weight", "mtp.0.eh_proj.weight", "mtp.1.eh_proj.weight", "norm.weight"):
        assert model.get_parameter(name).grad.abs().sum() > 0
    assert model.mtp["0"].norm.weight.grad.abs().sum() > 0


def test_experts_that_get_no_token_have_zero_gradients(make_model, ids):
    model = make_model(num_nextn_predict_layers=0)
    model(ids, expert_ids=torch.tensor([5, 2]).expand(2, 8, 2)).logits.sum().backward()
    grad = model.get_parameter("blocks.1.experts.routed.gate_up_proj").grad
    assert grad[[0, 1, 3, 4, 6, 7]].eq(0).all()
    assert grad[[2, 5]].abs().sum() > 0


def test_capacity_drops_are_counted_and_leave_the_residual(make_model, ids):
    model = make_model(capacity_factor=1.0, num_nextn_predict_layers=0, n_shared_experts=0)
    forced = torch.tensor([5, 2]).expand(2, 8, 2)
    model(ids, expert_ids=forced)
    # capacity ceil(1.0 * 8 * 2 / 8) = 2 of 8 tokens a sequence
    assert model.take_counters().dropped.tolist() == [2 * 2 * 6] * 2


class HostReads(TorchDispatchMode):
    """Counts reads of tensor values by the host."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in {"aten::_local_scalar_dense", "aten::nonzero", "aten::item", "aten::is_nonzero"}:
            self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


class NoReads:
    """A dispatcher whose every call is free of host reads: each token's first choice stays, on one expert."""

    def layout(self, ids):
        return ids

    def dispatch(self, x, gates, layout):
        from moeframe.protocols.dispatcher import Dispatched

        counts = torch.zeros(8, dtype=torch.int64)
        counts[0] = x.shape[0]
        return Dispatched(rows_RD=x.clone(), gates_R=gates[:, 0], counts_E=counts, counts_host=None, handle=None)

    def combine(self, rows, dispatched):
        return rows


def test_the_model_itself_never_reads_a_tensor_on_the_host_c129(tiny, backends, ids):
    from moeframe.model.plan import fill_model

    policy = Precision.of("float32")
    compute, _ = backends(tiny, policy)
    with torch.device("meta"):
        model = DeepSeekV3(tiny, compute, NoReads(), precision=policy)
    fill_model(model, torch.device("cpu"))
    model.step_state.begin(loss_tokens=16, mtp_tokens=(14,), valid_tokens=14)
    valid = torch.ones(2, 8, dtype=torch.bool)
    with HostReads() as reads:
        model(ids, valid=valid).logits.sum().backward()
        model.update_expert_bias(model.take_counters().tokens_per_expert)
    assert reads.names == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_group": 3}, "n_group: 3 does not divide n_routed_experts = 8"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok: 5 experts cannot be chosen of the 4"),
        ({"topk_group": 5}, "topk_group: 5 groups cannot be kept of 4"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim: 7 is odd"),
        ({"first_k_dense_replace": 4}, "first_k_dense_replace: 4 is not within the 3 layers"),
    ],
)
def test_dimensions_that_do_not_fit_are_refused(make_model, changes, message):
    with pytest.raises(ContractError, match=message):
        make_model(**changes)


def test_experts_that_cannot_be_shared_equally_are_refused(tiny, backends):
    policy = Precision.of("float32")
    with pytest.raises(ContractError, match="8 experts cannot be shared equally by 3"):
        DeepSeekV3(tiny, *backends(tiny, policy), precision=policy, ep_size=3)
