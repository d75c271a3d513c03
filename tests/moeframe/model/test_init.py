"""Initial weights depend on seed, name and element alone."""

from __future__ import annotations

import pytest
import torch

from moeframe.model.init import SeededWeights, normal_


def drawn(size, *, seed=0, name="a.weight", std=1.0, dtype=torch.float64):
    tensor = torch.empty(size, dtype=dtype)
    normal_(tensor, seed=seed, name=name, std=std)
    return tensor


def test_mean_standard_deviation_and_tails_are_those_of_the_normal_distribution():
    x = drawn(1 << 20, std=0.02)
    assert x.mean().item() == pytest.approx(0, abs=5 * 0.02 / 1024)
    assert x.std().item() == pytest.approx(0.02, rel=5e-3)
    assert (x.abs() > 2 * 0.02).double().mean().item() == pytest.approx(0.0455, rel=0.02)
    assert (x**4).mean().item() == pytest.approx(3 * 0.02**4, rel=0.02)


def test_neighbours_seeds_and_names_are_independent():
    size = 1 << 18
    x = drawn(size)
    noise = 5 / size**0.5
    for other in (x.roll(1), x.roll(2), drawn(size, seed=1), drawn(size, name="b.weight")):
        assert torch.corrcoef(torch.stack([x, other]))[0, 1].abs() < noise
        assert torch.corrcoef(torch.stack([x**2, other**2]))[0, 1].abs() < noise


def test_an_element_is_the_same_in_a_longer_tensor_of_any_shape():
    long = drawn((1 << 20) + 11)
    assert torch.equal(long[:1001], drawn(1001))
    assert torch.equal(long[: 7 * 9].view(7, 9), drawn((7, 9)))
    assert len(long.unique()) > 0.99 * len(long)


def test_every_dtype_gets_the_same_numbers_rounded():
    exact = drawn(1000, std=0.006)
    assert torch.equal(drawn(1000, std=0.006, dtype=torch.float32), (exact / 0.006).float() * 0.006)
    assert torch.allclose(drawn(1000, std=0.006, dtype=torch.bfloat16).double(), exact, rtol=2**-7, atol=0)


def test_a_strided_tensor_gets_the_same_numbers():
    whole = torch.zeros(6, 8, dtype=torch.float64)
    normal_(whole[:, :4], seed=3, name="x", std=1.0)
    assert torch.equal(whole[:, :4], drawn((6, 4), seed=3, name="x"))
    assert whole[:, 4:].eq(0).all()


def test_norms_are_one_and_biases_zero():
    weights = SeededWeights(0, 0.02)
    norm, bias = torch.empty(5), torch.empty(5)
    weights.fill_("blocks.0.attend.norm.weight", norm, first_expert=None)
    weights.fill_("blocks.1.attend.router.e_score_correction_bias", bias, first_expert=None)
    assert norm.tolist() == [1.0] * 5
    assert bias.tolist() == [0.0] * 5


@pytest.mark.parametrize(("leaf", "shape"), [("gate_up_proj", (4, 6, 5)), ("down_proj", (4, 5, 3))])
def test_an_expert_is_the_same_on_whichever_rank_it_lies(leaf, shape):
    weights, name = SeededWeights(0, 0.02), f"blocks.1.experts.routed.{leaf}"
    whole = torch.empty(shape)
    weights.fill_(name, whole, first_expert=0)
    for ep in (2, 4):
        local = 4 // ep
        for rank in range(ep):
            part = torch.empty(local, *shape[1:])
            weights.fill_(name, part, first_expert=rank * local)
            assert torch.equal(part, whole[rank * local : (rank + 1) * local])
    assert len(whole.unique()) == whole.numel()
