from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROXY = "recipes/deepseek_v3/proxy_2gpu.yaml"


def plan(*arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, "-m", "moeframe", "plan", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )


def test_plan_needs_neither_torch_nor_a_gpu_nor_the_library_of_a_backend() -> None:
    done = plan(PROXY, "dispatcher.name=deepep", python=("-X", "importtime"))

    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line}
    assert not imported & {"torch", "numpy", "deep_ep"}
    assert "2 ranks: pp 1, dp_replicate 1, dp_shard 2, ep 2, edp 1" in done.stdout
    assert "deepep: receive queues over NVLink" in done.stdout
    assert "Not counted:\n  - activations" in done.stdout


def test_the_same_is_printed_as_data() -> None:
    done = plan(PROXY, "dispatcher.name=hybridep", "--json")

    data = json.loads(done.stdout)
    (rank,) = data["ranks"]
    items = [*rank["state"], *rank["buffers"]]
    assert data["mesh"] == {"pp": 1, "dp_replicate": 1, "dp_shard": 2, "ep": 2, "edp": 1}
    assert rank["num_bytes"] == sum(item["num_bytes"] for item in items)
    assert all(item["num_bytes"] > 0 and item["formula"] for item in items)
    experts = next(one for one in rank["parameters"] if one["role"] == "expert")
    assert experts["of_rank"] == 3 * 32 * 3 * 7168 * 2048  # layers x experts of a rank x matrices


def test_each_pipeline_rank_of_a_cluster_has_numbers_of_its_own() -> None:
    done = plan("recipes/deepseek_v3/671b.yaml", "--json")

    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert len(data["ranks"]) == data["mesh"]["pp"]
    assert sum(len(rank["layers"]) for rank in data["ranks"]) == 61


def test_what_a_dispatcher_cannot_do_is_refused_with_the_way_out() -> None:
    done = plan(PROXY, "dispatcher.name=deepep", "model.hidden_size=8160", "model.num_experts_per_tok=33")

    assert done.returncode == 2
    assert "rows of at most 8112" in done.stderr
    assert "at most 32 experts" in done.stderr
