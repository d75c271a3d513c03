"""DeepSeek-V3's width on two GPUs: fifty steps with each backend; the summary shows speed and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEPS = 50
SIZES = (
    "model.num_hidden_layers=2",
    "train.global_batch_size=4",
    "data.name=python_sources",
    "data.options={}",
    "optimizer.lr_schedule.warmup_steps=10",
)
"""One dense and one MoE layer, and 4 sequences of 4096 tokens a step, to be done in time; text, which can be learned,
routed as the router likes."""


@pytest.mark.alone
@pytest.mark.parametrize(
    "overrides",
    [
        ("dispatcher.name=hybridep",),
        ("compute.name=te",),
        ("sharding.name=megatron_fsdp",),
        ("dispatcher.name=deepep",),
        ("dispatcher.name=alltoall",),
    ],
    ids=" ".join,
)
def test_fifty_steps_lower_the_loss(tmp_path: Path, require_usable, measured, overrides: tuple[str, ...]) -> None:
    for override in overrides:
        key, _, value = override.partition("=")
        if key.endswith(".name"):
            require_usable(key.removesuffix(".name"), value)
    recipe = ROOT / "recipes" / "deepseek_v3" / "proxy_2gpu.yaml"
    command = [sys.executable, "-m", "moeframe", "run", str(recipe), f"train.steps={STEPS}", "train.loads_every=0"]
    answer = subprocess.run(
        [*command, *SIZES, f"train.output_dir={tmp_path}", *overrides],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert answer.returncode == 0, answer.stdout[-4000:] + answer.stderr[-8000:]

    (metrics,) = tmp_path.glob("*/*/metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert len(lines) == STEPS
    assert lines[-1]["ce_loss"] < 0.6 * lines[0]["ce_loss"]
    settled = sorted(line["tokens_per_second"] for line in lines[STEPS // 2 :])
    memory = max(line["peak_memory_bytes"] for line in lines)
    measured(
        f"{' '.join(overrides)}: {settled[len(settled) // 2]:,.0f} tokens/s (median of the last {len(settled)} steps), "
        f"{memory / 2**30:.1f} GiB peak, loss {lines[0]['ce_loss']:.3f} -> {lines[-1]['ce_loss']:.3f}"
    )
