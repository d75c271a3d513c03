"""AdamW on pieces."""

from __future__ import annotations

import warnings

import pytest
import torch
from moeframe_torch_sharding.norm import Share, clip_to_norm_, global_norm
from moeframe_torch_sharding.optimizer import PieceAdamW
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from moeframe.protocols.sharding import AdamWSettings
from moeframe.testing.ranks import RankPool

SETTINGS = AdamWSettings(lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def values(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def two_steps(sharded: bool) -> list[list[float]]:
    """C39: a plain parameter, one sharded over a line of two ranks, one over another mesh; uneven rows."""
    parameters = {"plain": nn.Parameter(values((4,), 0))}
    for index, name in enumerate(("line", "other")):
        whole = values((3, 2), index + 1)
        if sharded:
            whole = distribute_tensor(whole, init_device_mesh("cpu", (2,), mesh_dim_names=(name,)), [Shard(0)])
        parameters[name] = nn.Parameter(whole)
    optimizer = PieceAdamW(parameters, SETTINGS)
    for step in range(2):
        for index, parameter in enumerate(parameters.values()):
            gradient = values(tuple(parameter.shape), 10 * step + index)
            if isinstance(parameter, DTensor):
                gradient = distribute_tensor(gradient, parameter.device_mesh, [Shard(0)])
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
    wholes = [p.full_tensor() if isinstance(p, DTensor) else p for p in parameters.values()]
    return [whole.detach().flatten().tolist() for whole in wholes]


def test_c39_plain_and_sharded_parameters_step_as_plain_ones(ranks: RankPool) -> None:
    wanted = two_steps(sharded=False)
    for found in ranks.run(two_steps, True, world_size=2):
        assert found == [pytest.approx(row, rel=1e-14) for row in wanted]


def test_a_step_equals_torch_adamw() -> None:
    ours, theirs = nn.Parameter(values((5,), 0)), nn.Parameter(values((5,), 0))
    optimizer = PieceAdamW({"weight": ours}, SETTINGS)
    reference = torch.optim.AdamW([theirs], lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(3):
        for group in (*optimizer.param_groups, *reference.param_groups):
            group["lr"] = 0.1 / (step + 1)
        ours.grad, theirs.grad = values((5,), step + 1), values((5,), step + 1)
        optimizer.step()
        reference.step()
    assert torch.allclose(ours, theirs, rtol=1e-14, atol=0)


def test_a_parameter_without_gradient_is_not_stepped() -> None:
    parameter = nn.Parameter(values((2,), 0))
    optimizer = PieceAdamW({"weight": parameter}, SETTINGS)
    parameter.grad = values((2,), 1)
    optimizer.zero_grad(set_to_none=False)
    assert parameter.grad.tolist() == [0.0, 0.0]
    optimizer.zero_grad()
    assert parameter.grad is None
    optimizer.step()
    assert torch.equal(parameter, values((2,), 0))
    assert float(optimizer.moments()["weight"]["step"]) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_clipping_and_stepping_never_wait_for_the_device() -> None:
    device = torch.device("cuda", 0)
    parameters = {name: nn.Parameter(torch.ones(rows, 2, device=device)) for name, rows in (("some", 3), ("none", 0))}
    optimizer = PieceAdamW(parameters, SETTINGS)
    for parameter in parameters.values():
        parameter.grad = torch.full_like(parameter, 2.0)
    gradients = [parameter.grad for parameter in parameters.values() if parameter.grad is not None]
    with warnings.catch_warnings(action="ignore"):  # torch says that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        norm = global_norm([Share(gradients, None)], None, device, torch.float32)
        clip_to_norm_(gradients, norm, 1.0)
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(norm) == pytest.approx(24**0.5)
    # 1 * (1 - lr * weight_decay) - lr * sign(gradient)
    assert parameters["some"].flatten().tolist() == pytest.approx([0.89] * 6)
