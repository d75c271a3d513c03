"""The pool of warm rank processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from moeframe import trace
from moeframe.testing.ranks import RankError, RankPool, RankTimeoutError


@dataclass(frozen=True)
class Pair:
    """A class that only this test module knows."""

    left: int
    right: int


def total_of(value: int) -> int:
    import torch
    from torch import distributed

    x = torch.tensor(value * (distributed.get_rank() + 1))
    distributed.all_reduce(x)
    return int(x)


def swap(pair: Pair) -> Pair:
    return Pair(pair.right, pair.left)


def place() -> tuple[int, int, int]:
    import torch
    from torch import distributed

    return distributed.get_rank(), distributed.get_world_size(), torch.get_num_threads()


def process() -> int:
    return os.getpid()


def random_number() -> float:
    import torch

    return float(torch.rand(()))


def fail_on(rank: int, *, others: str = "end") -> None:
    from torch import distributed

    if distributed.get_rank() == rank:
        sys.stdout.write("about to fail")
        raise ZeroDivisionError(f"on purpose, on {rank}")
    if others == "wait":
        distributed.barrier()
    if others == "sleep":
        time.sleep(60)


def fail_on_and_sleep(rank: int) -> None:
    fail_on(rank, others="sleep")


def fail_on_and_wait(rank: int) -> None:
    fail_on(rank, others="wait")


def fail_inside_a_span() -> None:
    with trace.span(step=7, layer=3, phase="dispatch"):
        raise ValueError("inside")


def where() -> str:
    return str(trace.current())


class TwoArgumentsError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def raise_unpicklable() -> None:
    raise TwoArgumentsError("a", "b")


def sleep_on(rank: int) -> None:
    from torch import distributed

    if distributed.get_rank() == rank:
        time.sleep(60)


def die(rank: int) -> None:
    from torch import distributed

    if distributed.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)


def test_results_come_back_by_rank_from_one_process_group(ranks: RankPool) -> None:
    assert ranks.run(place, world_size=4) == [(0, 4, 1), (1, 4, 1), (2, 4, 1), (3, 4, 1)]
    assert ranks.run(total_of, 10, world_size=2) == [30, 30]
    assert ranks.run(total_of, 10, world_size=1) == [10]


def test_processes_stay_warm_between_calls(ranks: RankPool) -> None:
    assert ranks.run(process, world_size=2) == ranks.run(process, world_size=2)


def test_classes_of_the_test_module_travel_both_ways(ranks: RankPool) -> None:
    assert ranks.run(swap, Pair(1, 2), world_size=2) == [Pair(2, 1), Pair(2, 1)]


def test_every_call_starts_from_the_same_seed(ranks: RankPool) -> None:
    first = ranks.run(random_number, world_size=2)

    assert ranks.run(random_number, world_size=2) == first
    assert first[0] == first[1]


def test_an_exception_names_its_rank_and_brings_type_traceback_and_output(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"rank 1: ZeroDivisionError: on purpose, on 1") as caught:
        ranks.run(fail_on, 1, world_size=2)

    assert caught.value.rank == 1
    assert isinstance(caught.value.error, ZeroDivisionError)
    assert caught.value.__cause__ is caught.value.error
    assert "in fail_on" in str(caught.value)
    assert "about to fail" in str(caught.value)
    assert ranks.run(total_of, 1, world_size=2) == [3, 3]


def test_a_failing_rank_wakes_those_that_wait_for_it(ranks: RankPool) -> None:
    before = ranks.run(process, world_size=2)

    with pytest.raises(RankError) as caught:
        ranks.run(fail_on_and_wait, 0, world_size=2)

    assert caught.value.rank == 0
    assert set(caught.value.failures) == {0, 1}
    assert ranks.run(process, world_size=2) == before


def test_ranks_that_do_not_answer_after_a_failure_are_killed_and_replaced(ranks: RankPool) -> None:
    before = ranks.run(process, world_size=2)
    start = time.monotonic()

    with pytest.raises(RankError, match="rank 1: no answer within 3 s") as caught:
        ranks.run(fail_on_and_sleep, 0, world_size=2)

    assert time.monotonic() - start < 30
    assert "in fail_on_and_sleep" in str(caught.value)
    after = ranks.run(process, world_size=2)
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_an_exception_that_does_not_survive_pickling_is_still_described(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"TwoArgumentsError: ab") as caught:
        ranks.run(raise_unpicklable, world_size=1)

    assert caught.value.error is None


def test_a_failed_call_leaves_no_place_behind(ranks: RankPool) -> None:
    with pytest.raises(RankError):
        ranks.run(fail_inside_a_span, world_size=1)

    assert ranks.run(where, world_size=1) == ["before the first step"]


def test_a_timeout_names_the_silent_ranks_and_shows_their_stacks(ranks: RankPool) -> None:
    with pytest.raises(
        RankTimeoutError, match=r"no answer within 1 s from rank\(s\) 1, now killed; answered: 0"
    ) as caught:
        ranks.run(sleep_on, 1, world_size=2, timeout=1)

    assert caught.value.ranks == (1,)
    assert "in sleep_on" in str(caught.value)
    assert ranks.run(total_of, 1, world_size=2) == [3, 3]


def test_a_process_that_dies_is_named_with_its_signal(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"rank 1: process ended: the process ended by signal 9 \(SIGKILL\)"):
        ranks.run(die, 1, world_size=2)

    assert ranks.run(total_of, 1, world_size=2) == [3, 3]


def test_a_local_function_is_refused_before_anything_runs(ranks: RankPool) -> None:
    with pytest.raises(TypeError, match="top level"):
        ranks.run(lambda: None, world_size=1)


def test_a_world_larger_than_the_pool_is_refused(ranks: RankPool) -> None:
    with pytest.raises(ValueError, match=r"world_size = 5: this pool has 1 to 4 ranks"):
        ranks.run(process, world_size=5)


ORPHANS = """
import sys, time
sys.path.insert(0, {folder!r})
import sleeper
from moeframe.testing.ranks import RankPool
pool = RankPool(1)
print(pool.run(sleeper.pid)[0], flush=True)
pool.run(sleeper.sleep)
"""


def test_no_process_survives_the_death_of_its_parent(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(
        "import os, time\ndef pid(): return os.getpid()\ndef sleep(): time.sleep(300)\n", encoding="utf-8"
    )
    program = ORPHANS.format(folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert Path(f"/proc/{worker}").exists()
        time.sleep(0.5)
        parent.kill()
    limit = time.monotonic() + 20
    while _alive(worker) and time.monotonic() < limit:
        time.sleep(0.05)

    assert not _alive(worker)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
