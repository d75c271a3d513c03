"""What only a GPU can show of the model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from moeframe_collectives.local import LocalDispatcher
from moeframe_collectives.options import LocalOptions
from moeframe_torch_compute.compute import TorchCompute
from moeframe_torch_compute.options import TorchComputeOptions

from moeframe.model.deepseek_v3 import DeepSeekV3, ModelStage
from moeframe.model.init import normal_
from moeframe.model.plan import fill_model
from moeframe.protocols.compute import ComputeContext
from moeframe.protocols.data import IGNORED, MicroBatch
from moeframe.protocols.dispatcher import DispatcherContext
from moeframe.protocols.precision import Precision

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def make(config, precision, device):
    policy = Precision.of(precision)
    context = DispatcherContext(
        ep_axis="ep",
        ep_size=1,
        ep_rank=0,
        ep_group=None,
        num_experts=config.n_routed_experts,
        hidden_size=config.hidden_size,
        top_k=config.num_experts_per_tok,
        max_tokens=64,
        dtype=policy.dtype("compute"),
        device=device,
    )
    compute = TorchCompute(TorchComputeOptions(), ComputeContext(precision=policy, device=device))
    with torch.device("meta"):
        model = DeepSeekV3(config, compute, LocalDispatcher(LocalOptions(), context), precision=policy)
    fill_model(model, device, seed=3)
    return model


def one_step(model, device):
    ids = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(0))
    last = torch.full((2, 1), IGNORED)
    batch = MicroBatch(
        input_ids=ids[:, :-1].to(device),
        targets=ids[:, 1:].to(device),
        mtp_targets=(torch.cat([ids[:, 2:], last], 1).to(device),),
        valid=torch.ones(2, 8, dtype=torch.bool, device=device),
    )
    model.step_state.begin(loss_tokens=16, mtp_tokens=(14,), valid_tokens=16)
    stage = ModelStage(model)
    loss = stage.loss(stage.forward(None, batch), batch)
    loss.backward()
    return loss


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_gpu_and_cpu_compute_the_same(tiny, precision):
    results = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        model = make(tiny, precision, device)
        loss = one_step(model, device).item()
        counters = model.take_counters()
        grads = {name: parameter.grad.cpu() for name, parameter in model.named_parameters()}
        results.append((loss, grads, counters.tokens_per_expert.cpu()))
    (loss, grads, counts), (gpu_loss, gpu_grads, gpu_counts) = results
    tolerance = 1e-9 if precision == "float64" else 1e-4
    assert gpu_loss == pytest.approx(loss, rel=tolerance)
    assert torch.equal(counts, gpu_counts)
    for name, gradient in grads.items():
        atol = tolerance * gradient.abs().max().item()
        torch.testing.assert_close(gpu_grads[name], gradient, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_bfloat16_training_never_waits_for_the_gpu_c129(tiny):
    device = torch.device("cuda")
    model = make(replace(tiny, capacity_factor=1.5), "bfloat16", device)
    one_step(model, device)
    model.zero_grad()
    counters = model.take_counters()
    ids = torch.randint(0, 64, (2, 8), device=device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        model(ids, valid=torch.ones_like(ids, dtype=torch.bool)).logits.float().sum().backward()
        model.update_expert_bias(counters.tokens_per_expert)
        model.take_counters()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def test_initial_weights_are_those_of_the_cpu():
    here, there = torch.empty(1 << 16), torch.empty(1 << 16, device="cuda")
    for tensor in (here, there):
        normal_(tensor, seed=1, name="x", std=0.02)
    assert torch.equal(here, there.cpu())
