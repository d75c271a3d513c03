"""V2-Lite's kind of model against a second writing of it, straight from its published formulas.

Softmax scores, greedy choice, no renormalisation, two shared experts, queries without a latent, YaRN with mscale.
"""

from __future__ import annotations

import math

import pytest
import torch

from moeframe.model.config import RopeScaling

YARN = RopeScaling(
    factor=40, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1, mscale=0.707, mscale_all_dim=0.707
)
CHANGES = {
    "scoring_func": "softmax",
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "n_shared_experts": 2,
    "q_lora_rank": None,
    "num_experts_per_tok": 3,
    "num_nextn_predict_layers": 0,
    "rope_scaling": YARN,
    "qk_rope_head_dim": 16,
    "v_head_dim": 12,
}


def norm(x, weight, eps=1e-6):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def mlp(x, gate, up, down):
    hidden = x @ gate.T
    return (hidden / (1 + torch.exp(-hidden)) * (x @ up.T)) @ down.T


def turned(x):
    """Rotate (S, d) by position, pair by pair, as complex numbers, with YaRN's frequencies."""
    size = x.shape[-1]
    angles = []
    for pair in range(size // 2):
        frequency = 1.0 / (10000.0 ** (torch.tensor(2.0 * pair) / size))
        low = math.floor(size * math.log(4096 / (32 * 2 * math.pi)) / (2 * math.log(10000)))
        high = math.ceil(size * math.log(4096 / (1 * 2 * math.pi)) / (2 * math.log(10000)))
        ramp = min(max((pair - low) / (high - low), 0.0), 1.0)
        angles.append((frequency / 40 * ramp + frequency * (1 - ramp)).double())
    turn = torch.outer(torch.arange(x.shape[0], dtype=torch.float64), torch.stack(angles))
    pairs = torch.complex(x[:, 0::2], x[:, 1::2]) * torch.exp(1j * turn)
    out = torch.empty_like(x)
    out[:, 0::2], out[:, 1::2] = pairs.real, pairs.imag
    return out


def attention(x, weights, prefix):
    heads, nope, rope, value, latent_size = 2, 16, 16, 12, 16
    q = x @ weights[f"{prefix}.q_proj.weight"].T
    down = x @ weights[f"{prefix}.kv_a_proj_with_mqa.weight"].T
    latent = norm(down[:, :latent_size], weights[f"{prefix}.kv_a_layernorm.weight"])
    k_rope = turned(down[:, latent_size:])
    kv = latent @ weights[f"{prefix}.kv_b_proj.weight"].T
    m = 0.1 * 0.707 * math.log(40) + 1
    scale = m * m / math.sqrt(nope + rope)
    outputs = []
    for head in range(heads):
        q_head = q[:, head * (nope + rope) : (head + 1) * (nope + rope)]
        kv_head = kv[:, head * (nope + value) : (head + 1) * (nope + value)]
        scores = (q_head[:, :nope] @ kv_head[:, :nope].T + turned(q_head[:, nope:]) @ k_rope.T) * scale
        hidden = torch.full_like(scores, -math.inf).triu(1)
        outputs.append(torch.softmax(scores + hidden, -1) @ kv_head[:, nope:])
    return torch.cat(outputs, -1) @ weights[f"{prefix}.o_proj.weight"].T


def feed_forward(x, weights, prefix, is_moe):
    if not is_moe:
        return mlp(x, *(weights[f"{prefix}.experts.mlp.{leaf}_proj.weight"] for leaf in ("gate", "up", "down")))
    scores = torch.softmax(x @ weights[f"{prefix}.attend.router.weight"].T, -1)
    out = mlp(x, *(weights[f"{prefix}.experts.shared.{leaf}_proj.weight"] for leaf in ("gate", "up", "down")))
    routed = f"{prefix}.experts.routed"
    for token in range(x.shape[0]):
        for expert in sorted(range(8), key=lambda e, token=token: -scores[token, e].item())[:3]:
            gate, up = weights[f"{routed}.gate_up_proj"][expert].chunk(2)
            out[token] = out[token] + scores[token, expert] * mlp(
                x[token], gate, up, weights[f"{routed}.down_proj"][expert]
            )
    return out


def second_writing(weights, ids):
    x = weights["embedding.weight"][ids]
    for layer in range(3):
        prefix = f"blocks.{layer}"
        x = x + attention(norm(x, weights[f"{prefix}.attend.norm.weight"]), weights, f"{prefix}.attend.attention")
        x = x + feed_forward(norm(x, weights[f"{prefix}.attend.ffn_norm.weight"]), weights, prefix, layer >= 1)
    return norm(x, weights["norm.weight"]) @ weights["head.weight"].T


@pytest.fixture
def ids():
    return torch.randint(0, 64, (2, 10), generator=torch.Generator().manual_seed(0))


def test_logits_and_gradients_equal_the_second_writing(make_model, ids):
    model = make_model(**CHANGES)
    assert model.blocks["1"].experts.shared.gate_proj.weight.shape == (2 * 16, 32)
    logits = model(ids).logits
    weights = {name: tensor.detach().clone().requires_grad_() for name, tensor in model.named_parameters()}
    wanted = torch.stack([second_writing(weights, row) for row in ids])
    torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-12)

    (logits**2).sum().backward()
    (wanted**2).sum().backward()
    for name, parameter in model.named_parameters():
        scale = weights[name].grad.abs().max().item()
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=0, atol=1e-10 * scale)


def test_yarn_and_its_mscale_matter(make_model, ids):
    with_yarn = make_model(**CHANGES)(ids).logits
    without = make_model(**{**CHANGES, "rope_scaling": None})(ids).logits
    assert (with_yarn - without).abs().max() > 1e-3
