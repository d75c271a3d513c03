from __future__ import annotations

import pytest

from moeframe.errors import TopologyError
from moeframe.launch.environment import RENDEZVOUS, detect, process_environment

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a1"}


def test_a_process_without_a_launcher_is_alone() -> None:
    world = detect({})
    assert (world.launcher, world.rank, world.world_size) == ("none", 0, 1)


def test_torchrun_is_joined() -> None:
    world = detect(TORCHRUN)
    assert (world.launcher, world.rank, world.world_size, world.local_rank, world.run_id) == ("torchrun", 3, 4, 1, "a1")


def test_our_own_processes_are_told_from_torchrun() -> None:
    assert detect({**TORCHRUN, RENDEZVOUS: "file:///x"}).launcher == "local"


def test_slurm_is_joined() -> None:
    world = detect(
        {
            "SLURM_STEP_NUM_TASKS": "16",
            "SLURM_PROCID": "9",
            "SLURM_LOCALID": "1",
            "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
            "SLURM_JOB_ID": "77",
        }
    )
    assert (world.launcher, world.rank, world.world_size, world.local_rank) == ("slurm", 9, 16, 1)
    assert (world.local_world_size, world.run_id) == (8, "77")


def test_one_slurm_task_is_no_launcher() -> None:
    assert detect({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}).launcher == "none"


@pytest.mark.parametrize("broken", [{"RANK": "x"}, {"LOCAL_RANK": ""}])
def test_a_broken_launcher_variable_is_named(broken: dict[str, str]) -> None:
    with pytest.raises(TopologyError, match=next(iter(broken))):
        detect({**TORCHRUN, **broken})


def test_local_processes_share_the_cores_and_leave_multicast_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "NCCL_NVLS_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    variables = process_environment(1, 2, "file:///x", cores=8)
    assert variables["OMP_NUM_THREADS"] == "4"
    assert variables["NCCL_NVLS_ENABLE"] == "0"
    assert detect(variables).rank == 1


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "OMP_NUM_THREADS" not in process_environment(0, 2, "file:///x", cores=8)
