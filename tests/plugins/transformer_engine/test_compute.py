"""Whole modules and a whole model, against plain torch."""

from __future__ import annotations

import pytest
import torch
from moeframe_collectives.local import LocalDispatcher
from moeframe_collectives.options import LocalOptions
from moeframe_torch_compute.compute import TorchCompute
from moeframe_torch_compute.options import TorchComputeOptions
from moeframe_transformer_engine.compute import TransformerEngineCompute
from moeframe_transformer_engine.options import TransformerEngineOptions

from moeframe.errors import PluginError
from moeframe.model.config import DeepSeekV3Config
from moeframe.model.deepseek_v3 import DeepSeekV3, ModelStage
from moeframe.model.plan import fill_model
from moeframe.protocols.compute import Compute, ComputeContext
from moeframe.protocols.data import IGNORED, MicroBatch
from moeframe.protocols.dispatcher import DispatcherContext
from moeframe.protocols.precision import Precision

CPU = torch.device("cpu")
CONTEXT = ComputeContext(precision=Precision.of("bfloat16"), device=CPU)
CONFIG = DeepSeekV3Config(
    vocab_size=64,
    hidden_size=64,
    num_hidden_layers=2,
    first_k_dense_replace=1,
    intermediate_size=96,
    moe_intermediate_size=32,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_shared_experts=1,
    num_attention_heads=2,
    q_lora_rank=32,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=16,
    v_head_dim=16,
    n_group=1,
    topk_group=1,
    max_position_embeddings=64,
    num_nextn_predict_layers=1,
    initializer_range=0.1,
)


def te(fake, precision="bfloat16"):
    return TransformerEngineCompute(TransformerEngineOptions(precision=precision), CONTEXT, fake.engine)


def plain():
    return TorchCompute(TorchComputeOptions(grouped_mm="never"), CONTEXT)


def test_it_is_a_compute(fake):
    assert isinstance(te(fake), Compute)


def test_parameters_are_those_of_plain_torch(fake):
    with torch.device("meta"):
        found, wanted = (
            [c.linear(4, 8), c.rms_norm(4, 1e-6), c.grouped_experts(2, 8, 16)] for c in (te(fake), plain())
        )
    for ours, other in zip(found, wanted, strict=True):
        described = [
            [(name, p.shape, p.dtype, p.device.type) for name, p in module.named_parameters()]
            for module in (ours, other)
        ]
        assert described[0] == described[1]


@pytest.mark.parametrize("precision", ["bfloat16", "fp8_blockwise"])
@pytest.mark.parametrize("shape", [(2, 8), (3, 5), (0,)])
def test_a_linear_takes_any_number_of_rows(fake, precision, shape):
    linear, other = te(fake, precision).linear(64, 32), plain().linear(64, 32)
    torch.manual_seed(0)
    torch.nn.init.normal_(linear.weight, std=0.1)
    other.load_state_dict(linear.state_dict())
    x = torch.randn(*shape, 64).bfloat16()
    grad = torch.randn(*shape, 32).bfloat16()
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    out, wanted = linear(inputs[0]), other(inputs[1])
    out.backward(grad), wanted.backward(grad)
    assert not out._is_view()
    bound = 0.1 if precision == "fp8_blockwise" else 0.01
    for found, right in ((out, wanted), (inputs[0].grad, inputs[1].grad), (linear.weight.grad, other.weight.grad)):
        assert found.shape == right.shape
        assert found.dtype == right.dtype
        assert (found.float() - right.float()).norm() <= bound * right.float().norm()


def test_a_norm_is_that_of_plain_torch(fake):
    norm, other = te(fake).rms_norm(48, 1e-3), plain().rms_norm(48, 1e-3)
    torch.manual_seed(0)
    torch.nn.init.normal_(norm.weight)
    other.load_state_dict(norm.state_dict())
    inputs = [torch.randn(2, 3, 48, generator=torch.Generator().manual_seed(1)).bfloat16() for _ in range(2)]
    outs = [module(x.requires_grad_()) for module, x in zip((norm, other), inputs, strict=True)]
    grad = torch.randn(2, 3, 48).bfloat16()
    for out in outs:
        out.backward(grad)
    pairs = [outs, [x.grad for x in inputs], [norm.weight.grad, other.weight.grad]]
    for found, right in pairs:
        torch.testing.assert_close(found, right, rtol=2**-6, atol=2**-5)


def step(compute):
    policy = CONTEXT.precision
    context = DispatcherContext(
        ep_axis="ep",
        ep_size=1,
        ep_rank=0,
        ep_group=None,
        num_experts=CONFIG.n_routed_experts,
        hidden_size=CONFIG.hidden_size,
        top_k=CONFIG.num_experts_per_tok,
        max_tokens=64,
        dtype=torch.bfloat16,
        device=CPU,
    )
    with torch.device("meta"):
        model = DeepSeekV3(CONFIG, compute, LocalDispatcher(LocalOptions(), context), precision=policy)
    fill_model(model, CPU, seed=3)
    ids = torch.randint(0, 64, (2, 18), generator=torch.Generator().manual_seed(0))
    batch = MicroBatch(
        input_ids=ids[:, :-1],
        targets=ids[:, 1:],
        mtp_targets=(torch.cat([ids[:, 2:], torch.full((2, 1), IGNORED)], 1),),
        valid=torch.ones(2, 17, dtype=torch.bool),
        # A score that another rounding moves would send its token elsewhere.
        expert_ids=torch.stack([ids[:, :-1] % 4, (ids[:, :-1] + 1) % 4], -1),
    )
    model.step_state.begin(loss_tokens=34, mtp_tokens=(32,), valid_tokens=34)
    stage = ModelStage(model)
    loss = stage.loss(stage.forward(None, batch), batch)
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    ("precision", "loss_bound", "bound"), [("bfloat16", 2e-3, 0.08), ("fp8_blockwise", 5e-3, 0.35)]
)
def test_a_model_learns_what_it_learns_with_plain_torch(fake, precision, loss_bound, bound):
    loss, grads = step(te(fake, precision))
    right_loss, right = step(plain())
    assert abs(loss - right_loss) < loss_bound * right_loss
    assert grads.keys() == right.keys()
    for name, grad in grads.items():
        assert (grad - right[name]).norm() <= bound * right[name].norm(), name


def test_fp8_is_refused_where_the_gpu_cannot(fake, monkeypatch):
    fake.engine._fp8_support = lambda *, return_reason: (False, "FP8 block scaling requires compute capability 9.0.")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    with pytest.raises(
        PluginError, match=r"on NVIDIA A100: FP8 block scaling requires .*Use compute.options.precision=bfloat16"
    ):
        te(fake, "fp8_blockwise")
