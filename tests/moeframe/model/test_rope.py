"""Rotary embedding and YaRN, against the numbers of the published configurations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from moeframe.model.config import RopeScaling
from moeframe.model.rope import Rotary, attention_scale, correction_range, inverse_frequencies, mscale, rotate

V3 = RopeScaling(factor=40, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=1.0)
V2_LITE = RopeScaling(factor=40, original_max_position_embeddings=4096, mscale=0.707, mscale_all_dim=0.707)


@pytest.fixture
def v3(tiny):
    return replace(tiny, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)


def test_scale_without_yarn_is_one_over_root_of_the_head_size(v3):
    assert attention_scale(v3) == pytest.approx(0.0721688, abs=1e-7)


def test_yarn_sharpens_scores_by_the_square_of_mscale(v3):
    assert mscale(40, 1.0) == pytest.approx(1.368888, abs=1e-6)
    assert attention_scale(replace(v3, rope_scaling=V3)) == pytest.approx(0.135234, abs=1e-6)
    factor = attention_scale(replace(v3, rope_scaling=V2_LITE)) / attention_scale(v3)
    assert factor == pytest.approx(1.589626, abs=1e-6)


def test_yarn_blends_between_pairs_10_and_23(v3):
    low, high = correction_range(64, 10000.0, V3)
    assert (low, high) == (pytest.approx(10.47, abs=0.01), pytest.approx(22.51, abs=0.01))
    plain = inverse_frequencies(v3)
    stretched = inverse_frequencies(replace(v3, rope_scaling=V3))
    ratio = (plain / stretched).tolist()
    assert ratio[:11] == pytest.approx([1.0] * 11)
    assert ratio[23:] == pytest.approx([40.0] * 9)
    assert all(1 < value < 40 for value in ratio[11:23])
    middle = 5 / 13  # pair 15 on the ramp from 10 to 23
    assert ratio[15] == pytest.approx(1 / (middle / 40 + 1 - middle))


def test_equal_mscales_leave_the_tables_alone_and_others_scale_them(v3):
    one = torch.device("cpu"), torch.float64
    cos, _ = Rotary(replace(v3, rope_scaling=V3)).tables(1, *one)
    assert torch.equal(cos, torch.ones(1, 32, dtype=torch.float64))
    lone = replace(V3, mscale_all_dim=0.0)
    cos, _ = Rotary(replace(v3, rope_scaling=lone)).tables(1, *one)
    assert cos[0, 0].item() == pytest.approx(1.368888, abs=1e-6)


def test_pairs_are_interleaved_and_turn_by_their_angle():
    angle = torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    first, second = rotate(x, angle.cos(), angle.sin())
    turned = torch.view_as_complex(x.view(1, 2, 2)) * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(torch.complex(first, second), turned)


def test_tables_grow_with_the_sequence(v3):
    rotary = Rotary(v3)
    short = rotary.tables(4, torch.device("cpu"), torch.float64)
    long = rotary.tables(9, torch.device("cpu"), torch.float64)
    again = rotary.tables(4, torch.device("cpu"), torch.float64)
    assert long[0].shape == (9, 32)
    for one, other in zip(short, again, strict=True):
        assert torch.equal(one, other)
