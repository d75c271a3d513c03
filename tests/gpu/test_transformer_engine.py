"""Compute `te`: layers of the real width, the same numbers in other layouts, and FP8 training beside bfloat16.

Distances are ``|a - b| / |b|`` of a tensor's norm. E4M3 keeps 4 significant bits, so a product of two rounded factors
lies about 4 % off, whatever its size.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist
from moeframe_transformer_engine import plugin

from moeframe.config.load import load_recipe
from moeframe.protocols.compute import ComputeContext
from moeframe.protocols.precision import Precision
from moeframe.testing.compute_suite import ComputeConformance
from moeframe.train.assemble import assemble
from moeframe.train.trainer import Computed, Trainer

ROOT = Path(__file__).parents[2]
WIDTH, EXPERT_WIDTH = 7168, 2048
BFLOAT16_BOUND, FP8_BOUND = 0.01, 0.08

TE = ("compute.name=te", "train.precision=bfloat16")
FP8 = (*TE, "compute.options.precision=fp8_blockwise")


@pytest.fixture(autouse=True)
def _needs_it(require_usable):
    require_usable("compute", "te")


@pytest.mark.one_gpu
class TestBFloat16(ComputeConformance):
    (offer,) = plugin.moeframe_offer_computes()
    device = "cuda"


class TestFP8(TestBFloat16):
    options: ClassVar = {"precision": "fp8_blockwise"}
    # Products of two rounded factors, one after another.
    distance = 2 * FP8_BOUND


def computes():
    """Return plain torch, `te` in bfloat16 and in FP8."""
    from moeframe_torch_compute.compute import TorchCompute
    from moeframe_torch_compute.options import TorchComputeOptions
    from moeframe_transformer_engine.compute import TransformerEngineCompute
    from moeframe_transformer_engine.loading import load
    from moeframe_transformer_engine.options import TransformerEngineOptions

    context = ComputeContext(precision=Precision.of("bfloat16"), device=torch.device("cuda"))
    kinds = [TransformerEngineOptions(precision=name) for name in ("bfloat16", "fp8_blockwise")]
    return TorchCompute(TorchComputeOptions(), context), *(
        TransformerEngineCompute(kind, context, load()) for kind in kinds
    )


def distances(build, inputs):
    """Return those of outputs and gradients from plain torch's, for `te` in bfloat16 and in FP8."""
    found = []
    for compute in computes():
        torch.manual_seed(0)
        with torch.device("cuda"):
            module = build(compute)
            for parameter in module.parameters():
                torch.nn.init.normal_(parameter, std=0.02)
            *leaves, grad = (torch.randn(shape).to(dtype) for shape, dtype in inputs)
        for leaf in leaves:
            leaf.requires_grad_()
        out = module(*leaves)
        out.backward(grad)
        found.append([out.detach(), *(leaf.grad for leaf in [*leaves, *module.parameters()])])
    right, *others = found
    return [
        [((a.double() - b.double()).norm() / b.double().norm()).item() for a, b in zip(other, right, strict=True)]
        for other in others
    ]


def linear_distances(width_in, width_out, shape):
    dtype = torch.bfloat16
    return distances(
        lambda compute: compute.linear(width_in, width_out), [((*shape, width_in), dtype), ((*shape, width_out), dtype)]
    )


def expert_distances(counts, spare):
    rows = sum(counts) + spare

    def build(compute):
        experts = compute.grouped_experts(len(counts), WIDTH, EXPERT_WIDTH)
        forward = experts.forward
        counts_E = torch.tensor(counts, device="cuda")
        experts.forward = lambda x, gates: forward(x, gates, counts_E, counts)
        return experts

    return distances(
        build, [((rows, WIDTH), torch.bfloat16), ((rows,), torch.float32), ((rows, WIDTH), torch.bfloat16)]
    )


@pytest.mark.one_gpu
@pytest.mark.parametrize(
    ("width_in", "width_out", "shape"),
    [(7168, 1536, (2, 512)), (7168, 576, (1, 512)), (1536, 24576, (512,)), (16384, 7168, (512,)), (7168, 2048, (3, 7))],
)
def test_linears_of_the_real_width(ranks, width_in, width_out, shape):
    ((bfloat16, fp8),) = ranks.run(linear_distances, width_in, width_out, shape, world_size=1)
    assert max(bfloat16) < BFLOAT16_BOUND
    assert max(fp8) < FP8_BOUND


@pytest.mark.one_gpu
@pytest.mark.parametrize(
    ("counts", "spare"), [((512, 1024, 256, 768), 0), ((513, 0, 1, 777), 0), ((33, 40, 0, 7), 11), ((0, 0, 900, 0), 0)]
)
def test_experts_of_the_real_width(ranks, counts, spare):
    ((bfloat16, fp8),) = ranks.run(expert_distances, counts, spare, world_size=1)
    assert max(bfloat16) < BFLOAT16_BOUND
    # Two products after one another, and the error of a gate's gradient is that of both.
    assert max(fp8) < 2 * FP8_BOUND


SMALL = (
    "data.name=synthetic",
    "data.options.routing=balanced",
    "train.steps=2",
    "train.seq_len=64",
    "train.global_batch_size=8",
    "train.micro_batch_size=2",
    "train.eval_every=0",
    "optimizer.lr=0.01",
    "launch.device=cuda",
    "sharding.options={}",
    "model.hidden_size=128",  # the least that hybridep takes
    "model.qk_rope_head_dim=16",  # widths that FP8 takes
)
ONE = ("launch.nproc_per_node=1", "parallel.ep=1", "dispatcher.name=local", "sharding.name=replicate")


def two_steps(overrides):
    """Return losses and norms of two optimizer steps, and the first gradients by global name, experts of all ranks."""
    importlib.import_module("transformer_engine.pytorch")  # as in a job of its own: before plain torch loads its cuDNN
    with assemble(load_recipe(ROOT / "recipes/quickstart.yaml", [*SMALL, *overrides])) as job:
        trainer = Trainer(job, progress=False)
        losses, norms, gradients = [], [], {}
        for step in range(2):
            computed = trainer.compute_gradients(step)
            assert isinstance(computed, Computed)
            for name, own in (job.sharded.full_gradients() if not step else {}).items():
                parts = [own]
                if job.meshes.size("ep") > 1 and ".routed." in name:
                    parts = [torch.empty_like(own) for _ in range(job.meshes.size("ep"))]
                    dist.all_gather(parts, own.contiguous(), group=job.meshes.group("ep"))
                gradients[name] = torch.cat(parts).double().cpu() if len(parts) > 1 else own.double().cpu()
            metrics = trainer.apply_gradients(step, computed)
            losses += [float(metrics[key]) for key in ("loss", "ce_loss")]
            norms.append(float(metrics["grad_norm"]))
        return losses, norms, gradients


@pytest.fixture(scope="module")
def plain(ranks):
    return ranks.run(two_steps, (*ONE, "train.precision=bfloat16"), world_size=1, timeout=120)[0]


class Steps:
    """A step in some layouts."""

    layouts: ClassVar[list[object]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "layout" in metafunc.fixturenames:
            metafunc.parametrize("layout", self.layouts)

    @pytest.mark.parametrize(
        ("compute", "bounds"),
        [
            pytest.param(TE, (0.01, 0.05), id="bfloat16"),
            # A gradient has passed the roundings of every layer behind it.
            pytest.param(FP8, (0.01, 0.25), id="fp8"),
        ],
    )
    def test_a_step_is_that_of_plain_torch_on_one_gpu(
        self, ranks, plain, require_usable, measured, compute, bounds, layout
    ):
        named = dict(override.split("=") for override in layout)
        for kind in ("dispatcher", "sharding"):
            require_usable(kind, named[f"{kind}.name"])
        size = 1 if layout is ONE else 2
        axes = (*layout, *compute) if size == 1 else (*layout, *compute, "parallel.ep=2", "launch.nproc_per_node=2")
        worst = 0.0
        for losses, norms, gradients in ranks.run(two_steps, axes, world_size=size, timeout=120):
            assert losses == pytest.approx(plain[0], rel=bounds[0])
            assert norms == pytest.approx(plain[1], rel=bounds[1])
            assert gradients.keys() == plain[2].keys()
            for name, right in plain[2].items():
                error = ((gradients[name] - right).norm() / right.norm().clamp(min=1e-12)).item()
                worst = max(worst, error)
                assert error <= bounds[1], f"{name}: {error:.3g}"
        measured(f"{' '.join(axes)}: gradients within {worst:.2g} of plain torch's on one GPU")


class TestSteps(Steps):
    layouts: ClassVar = [
        pytest.param(ONE, id="one GPU", marks=pytest.mark.one_gpu),
        *(
            pytest.param((f"dispatcher.name={dispatcher}", f"sharding.name={sharding}"), id=f"{dispatcher} {sharding}")
            for dispatcher, sharding in (
                ("alltoall", "fsdp2"),
                ("alltoall", "zero1"),
                ("alltoall", "megatron_fsdp"),
                ("deepep", "fsdp2"),
            )
        ),
        pytest.param(
            ("dispatcher.name=alltoall", "sharding.name=fsdp2", "train.recompute=full", "debug.poison=true"),
            id="alltoall fsdp2 recompute poison",
        ),
    ]


class TestStepsWithHybridEP(Steps):
    """A process of their own, since they wait for kernels that are compiled."""

    layouts: ClassVar = [pytest.param(("dispatcher.name=hybridep", "sharding.name=fsdp2"), id="hybridep fsdp2")]


PROXY = (
    "model.vocab_size=256",
    "model.num_hidden_layers=2",
    "model.first_k_dense_replace=1",
    "model.n_routed_experts=8",
    "model.num_experts_per_tok=4",
    "model.n_group=1",
    "model.topk_group=1",
    "model.bias_update_speed=0.01",
    "parallel.ep=1",
    "dispatcher.name=local",
    "sharding.name=replicate",
    "data.name=python_sources",
    "data.options={}",
    "optimizer.lr=4e-5",
    "optimizer.lr_schedule.warmup_steps=50",
    "optimizer.lr_schedule.constant_steps=30",
    "optimizer.lr_schedule.decay_steps=120",
    "optimizer.lr_schedule.min_lr=1e-6",
    "optimizer.lr_schedule.final_lr=1e-6",
    "train.steps=200",
    "train.seq_len=512",
    "train.global_batch_size=16",
    "train.micro_batch_size=16",
    "train.loads_every=0",
    "launch.nproc_per_node=1",
)
"""One dense and one MoE layer of DeepSeek-V3's width on text, 8192 tokens a step.

Two runs whose products round differently drift apart, in bfloat16 too, where a step is as large as the valley is wide:
at the report's rate (2.2e-4), reached in 20 steps, gradients' norms jump between 2 and 30; plain torch and `te`, both
in bfloat16, ended 2.3 % apart. So the rate is low enough that no step jumps, it decays to nothing, the bias balances
within these few steps, and the losses at the end are averaged; every run sees the same tokens in the same order.
"""
SETTLED = 50
"""Steps at the end, of which the losses are averaged."""


class TestTraining:
    @pytest.mark.one_gpu
    def test_fp8_trains_as_bfloat16_does(self, tmp_path, measured, gpus):
        """200 steps each, side by side; the losses at the end, averaged, within 0.5 %."""
        recipe = ROOT / "recipes/deepseek_v3/proxy_2gpu.yaml"
        command = [sys.executable, "-m", "moeframe", "run", str(recipe), *PROXY]
        with contextlib.ExitStack() as opened:
            jobs = {
                name: subprocess.Popen(
                    [*command, f"train.output_dir={tmp_path / name}", *compute],
                    stdout=opened.enter_context((tmp_path / f"{name}.txt").open("w")),
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu, "PYTHONUNBUFFERED": "1"},
                )
                for (name, compute), gpu in zip((("bfloat16", TE), ("fp8", FP8)), gpus, strict=True)
            }
            for job in jobs.values():
                opened.callback(job.wait)
                opened.callback(job.terminate)  # what still runs when the other one failed
            ends_by = time.monotonic() + 180
            for name, job in jobs.items():
                code = job.wait(timeout=max(1.0, ends_by - time.monotonic()))
                assert code == 0, (tmp_path / f"{name}.txt").read_text()[-6000:]
        lines = {}
        for name in jobs:
            (metrics,) = (tmp_path / name).glob("*/*/metrics.jsonl")
            lines[name] = [json.loads(line) for line in metrics.read_text().splitlines()]
            assert len(lines[name]) == 200
            settled = sorted(line["tokens_per_second"] for line in lines[name][100:])
            memory = max(line["peak_memory_bytes"] for line in lines[name])
            first, last = lines[name][0]["ce_loss"], lines[name][-1]["ce_loss"]
            measured(
                f"te {name}, {'one GPU each' if gpus[0] != gpus[1] else 'on a shared GPU'}: "
                f"{settled[len(settled) // 2]:,.0f} tokens/s, {memory / 2**30:.1f} GiB peak, "
                f"loss {first:.3f} -> {last:.3f}"
            )
        ends = {name: sum(line["ce_loss"] for line in steps[-SETTLED:]) / SETTLED for name, steps in lines.items()}
        apart = ends["fp8"] / ends["bfloat16"] - 1
        measured(
            f"te fp8 against bfloat16 after 200 steps: loss {ends['fp8']:.4f} and {ends['bfloat16']:.4f}, {apart:+.2%}"
        )
        assert ends["bfloat16"] < 0.7 * lines["bfloat16"][0]["ce_loss"]
        assert abs(apart) < 0.005
