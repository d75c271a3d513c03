"""Verdicts over made-up ranks: every kind, who is named, and where."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from moeframe.protocols.stall import Stall
from moeframe.trace import Place
from moeframe.watch.crash import Crash
from moeframe.watch.judge import judge
from moeframe.watch.record import Moment
from moeframe.watch.table import report_lines
from moeframe.watch.view import Group, Launched, Raised, RankView

WORLD = Group(name="0", what="default_pg", ranks=(0, 1, 2, 3), launched=10)
AT = Place(step=5, micro_batch=0, layer=3, phase="dispatch")


def moment(place: Place = AT, event: str = "entered", life: str = "running", passed: int = 90) -> Moment:
    return Moment(
        count=100,
        at=50.0,
        stream=0,
        median_step_s=1.0,
        steps=5,
        passed=passed,
        place=place,
        finished=Place(step=5, layer=3, phase="attend"),
        event=event,
        life=life,
    )


def entry(
    sequence: int, *, op: str = "all_reduce", size: tuple[int, ...] = (4,), dtype: str = "Float", **more
) -> Launched:
    values = {"group": "0", "what": "default_pg", "p2p": False, "over": False, "results": (size,), **more}
    return Launched(op=op, sequence=sequence, sizes=(size,), dtypes=(dtype,), **values)


def rank(number: int, *collectives: Launched, launched: int = 10, **more) -> RankView:
    values = {"state": "running", "moment": moment(), "since": 1000.0 + number, "still_s": 40.0, **more}
    return RankView(
        rank=number,
        world_size=4,
        host="a",
        pid=100 + number,
        start_ticks=1,
        groups=(replace(WORLD, launched=launched),),
        collectives=collectives,
        **values,
    )


def waiting(number: int, sequence: int = 11) -> RankView:
    return rank(number, entry(sequence), launched=sequence)


def verdict(*views: RankView, world_size: int = 4):
    stall = judge(views, world_size=world_size)
    lines = report_lines(stall)
    assert len(stall.table) == len(views)
    assert lines[-2] == f"verdict: {stall.kind}: {stall.cause}"
    assert stall.advice
    return stall


def raised(number: int, error: str, *, time: float = 1.0, secondhand: bool = False, phase: str = "experts") -> Raised:
    return Raised(rank=number, error=error, place=replace(AT, phase=phase), time=time, secondhand=secondhand)


def test_a_rank_that_died_is_named_with_how_and_where() -> None:
    stall = verdict(waiting(0), rank(1, state="dead", ended_by="was killed by SIGKILL"), waiting(2), waiting(3))
    assert (stall.kind, stall.ranks) == ("rank_died", (1,))
    assert (stall.step, stall.layer, stall.phase, stall.direction) == (5, 3, "dispatch", "forward")
    assert "rank 1 was killed by SIGKILL at step 5, micro-batch 0, layer 3, dispatch (forward)" in stall.cause
    assert "process 101 on a" in stall.cause


def test_each_process_stands_behind_its_own_rank() -> None:
    dead = verdict(*[rank(number, state="dead", ended_by="was killed by SIGKILL") for number in (1, 3)], world_size=2)
    stopped = verdict(waiting(0), rank(1, state="stopped"), waiting(2), rank(3, state="stopped"))
    for stall in (dead, stopped):
        assert re.findall(r"rank (\d).*?\(process (\d+) on a\)", stall.cause) == [("1", "101"), ("3", "103")]


def test_what_to_do_about_a_death_depends_on_how_it_came_and_on_what_is_saved() -> None:
    def advice(ended_by: str, go_on: str = "Go on.") -> str:
        return judge([rank(0, state="dead", ended_by=ended_by)], world_size=1, go_on=go_on).advice

    killed, aborted = advice("was killed by SIGKILL"), advice("was killed by SIGABRT")
    assert ("SIGABRT" in killed, "out-of-memory" in killed) == (False, True)
    assert ("gloo" in aborted, "SIGKILL" in aborted) == (True, False)
    assert "log says" in advice("ended with exit code 3")
    assert all(word in advice("") for word in ("SIGKILL", "SIGABRT"))
    assert all(text.endswith(" Go on.") for text in (killed, aborted))
    assert "resume" not in advice("was killed by SIGKILL", "")


def test_a_rank_that_gloo_ends_is_sent_more_than_it_expects() -> None:
    crash = Crash(
        signal="SIGABRT", where="", collective="all_to_all_single, called by dispatch (/a/alltoall.py, line 90)"
    )
    others = [rank(number, entry(12, created=2.0), entry(11, created=1.0)) for number in (0, 2, 3)]
    stall = verdict(others[0], rank(1, state="dead", crash=crash), *others[1:])
    assert (stall.kind, stall.ranks, stall.phase) == ("collective_arguments", (1,), "dispatch")
    assert "all_to_all_single, called by dispatch (/a/alltoall.py, line 90)" in stall.cause
    assert "rank 2: all_reduce Float [4], collective 12" in stall.cause
    elsewhere = Crash(signal="SIGSEGV", where="string_at (ctypes.py, line 5)", collective="")
    stall = verdict(*others, rank(1, state="dead", crash=elsewhere))
    assert stall.kind == "rank_died"
    assert "rank 1 crashed (SIGSEGV) at step 5" in stall.cause
    assert "(process 101 on a), in string_at (ctypes.py, line 5)" in stall.cause
    assert "SIGKILL" not in stall.advice


def test_of_many_dead_ranks_the_first_to_fall_silent_are_named() -> None:
    dead = [rank(number, state="dead", alive_at=at) for number, at in enumerate((20.0, 10.0, 10.4, 20.0))]
    assert verdict(*dead).ranks == (1, 2)


def test_a_rank_that_lost_a_dead_one_is_not_the_cause() -> None:
    lost = rank(0, state="failed", raised=raised(0, "RuntimeError: Connection closed by peer", secondhand=True))
    assert verdict(lost, rank(1, state="dead"), waiting(2), waiting(3)).ranks == (1,)


def test_a_rank_that_failed_without_a_report_is_the_cause_and_not_who_lost_it() -> None:
    lost = rank(0, state="failed", raised=raised(0, "RuntimeError: Connection closed by peer", secondhand=True))
    stall = verdict(lost, rank(1, state="failed", ended_by="ended with exit code 5"), world_size=2)
    assert (stall.kind, stall.ranks) == ("rank_died", (1,))
    full_disk = verdict(rank(0, state="failed"), world_size=1)
    assert full_disk.cause.startswith("rank 0 failed, and no report of it can be read at step 5")
    assert ("SIGKILL" in full_disk.advice, "full disk" in full_disk.advice) == (False, True)


def test_a_process_that_gloo_ends_when_its_peer_is_killed_is_not_the_cause() -> None:
    crash = Crash(signal="SIGABRT", where="", collective="all_reduce")
    victim = rank(0, state="dead", ended_by="was killed by SIGABRT", crash=crash)
    stall = verdict(victim, rank(1, state="dead", ended_by="was killed by SIGKILL"), world_size=2)
    assert (stall.kind, stall.ranks) == ("rank_died", (1,))
    assert verdict(replace(victim, gpu=True), waiting(1), world_size=2).kind == "rank_died"


LAUNCHER_END = "`moeframe run` (process 7 on a) was killed"


def test_ranks_that_ended_with_the_process_that_started_them_are_not_to_blame() -> None:
    def judged(*views: RankView) -> Stall:
        return judge(views, world_size=len(views), go_on="Go on.", launcher_end=LAUNCHER_END)

    dead = [rank(number, state="dead", alive_at=1003.0) for number in (0, 1)]
    stall = judged(*dead)
    assert (stall.kind, stall.ranks, stall.step, stall.phase) == ("launcher_died", (0, 1), 5, "dispatch")
    assert stall.cause.startswith(f"{LAUNCHER_END}, and the ranks were ended with it (rank 0 at step 5, ")
    assert stall.cause.endswith(", layer 3, dispatch (forward))")
    assert stall.advice.startswith("Find out who ended it")
    assert stall.advice.endswith(" Go on.")
    early = judged(dead[0], replace(dead[1], alive_at=990.0))
    assert early.cause.endswith("; rank 1 had given no sign of life for 13 s")
    still = judged(*[replace(view, alive_at=1401.0) for view in dead])
    assert still.cause.endswith("; no rank had moved for 400 s")
    assert judged(dead[0], rank(1, state="failed", raised=raised(1, "ValueError: x"))).kind == "rank_raised"
    assert judged(dead[0], replace(dead[1], ended_by="was killed by SIGKILL")).ranks == (1,)


@pytest.mark.parametrize("known", [{"ended_by": {1: "was killed by SIGKILL"}}, {"processes": {1: "dead"}}])
def test_of_a_rank_that_died_before_it_had_a_beacon_the_one_that_waited_for_it_is_not_the_cause(known) -> None:
    stall = judge([rank(0, state="dead")], world_size=2, **known)
    assert (stall.kind, stall.ranks) == ("rank_died", (1,))
    assert stall.cause.endswith(" before it had started: no beacon of it is there")
    later = judge([rank(0, state="dead", ended_by="was killed by SIGKILL")], world_size=2)
    assert (later.kind, later.ranks) == ("rank_died", (0,))


def test_a_launching_process_that_is_killed_before_its_ranks_have_started_is_named() -> None:
    stall = judge([], world_size=2, launcher_end=LAUNCHER_END)
    assert (stall.kind, stall.ranks) == ("launcher_died", (0, 1))
    assert stall.cause == f"{LAUNCHER_END} before ranks 0, 1 of 2 had started"


def test_a_rank_that_is_stopped_before_it_has_a_beacon_is_named_with_advice_that_stands_alone() -> None:
    stall = judge([waiting(0), waiting(1)], world_size=3, processes={2: "stopped"})
    assert (stall.kind, stall.ranks) == ("rank_stopped", (2,))
    assert stall.advice == "Find out who stopped it (a debugger, a frozen container)."


def test_a_stopped_rank_is_named() -> None:
    stall = verdict(waiting(0), waiting(1), rank(2, state="stopped"), waiting(3))
    assert (stall.kind, stall.ranks) == ("rank_stopped", (2,))
    assert "102 on a" in stall.cause
    assert stall.advice.startswith("`kill -CONT 102` lets it run again")


def test_the_rank_that_raised_first_is_named_with_the_place_of_the_error() -> None:
    stall = verdict(
        rank(0, state="failed", raised=raised(0, "KeyError: 'y'", time=3.0)),
        rank(1, state="failed", raised=raised(1, "ValueError: bad batch\nmore", time=2.0)),
        rank(2, state="failed", raised=raised(2, "RuntimeError: Connection reset by peer", time=1.0, secondhand=True)),
        rank(3, state="dead"),
    )
    assert (stall.kind, stall.ranks, stall.phase) == ("rank_raised", (1,), "experts")
    assert stall.cause.endswith("ValueError: bad batch")


@pytest.mark.parametrize("error", ["StopIteration: ", "IndexError: no sequence 7", "EOFError: x"])
def test_a_data_set_that_has_no_more_is_told_from_other_errors(error: str) -> None:
    stall = verdict(waiting(0), rank(1, state="failed", raised=raised(1, error, phase="data")), waiting(2), waiting(3))
    assert (stall.kind, stall.ranks, stall.phase) == ("data_ended", (1,), "data")


def test_a_rank_that_ended_while_others_go_on_is_one_whose_data_ended() -> None:
    stall = verdict(waiting(0), rank(1, state="finished"), waiting(2), waiting(3))
    assert (stall.kind, stall.ranks) == ("data_ended", (1,))


def test_a_rank_that_does_not_come_is_named_with_who_waits_for_it() -> None:
    late = rank(2, moment=moment(Place(step=6, phase="data")))
    stall = verdict(waiting(0), waiting(1), late, waiting(3))
    assert (stall.kind, stall.ranks, stall.phase, stall.step) == ("rank_absent", (2,), "data", 6)
    assert "ranks 0, 1, 3 wait in all_reduce Float [4], collective 11 of default_pg" in stall.cause


def test_of_processes_that_do_not_end_after_training_the_silence_says_nothing() -> None:
    stall = judge([rank(0, state="finished", deaf=True)], world_size=1, go_on="Go on.")
    assert (stall.kind, stall.ranks) == ("all_idle", (0,))
    assert stall.cause.startswith("training is over, and a process does not end (rank 0 ")
    assert "Go on." not in stall.advice


def test_who_waits_in_what_is_told_of_each() -> None:
    receive = rank(2, entry(3, op="recv 2<-1", p2p=True))
    stall = verdict(waiting(0), rank(1, moment=moment(replace(AT, phase="data"))), receive, world_size=3)
    assert stall.cause.endswith(
        "; rank 0 waits in all_reduce Float [4], collective 11 of default_pg, "
        "rank 2 waits in recv 2<-1 Float [4], message 3 of default_pg"
    )


def test_a_rank_that_runs_no_python_is_told_from_one_that_does() -> None:
    late = rank(2, moment=moment(Place(step=6, phase="data")), deaf=True)
    assert "native code holds the interpreter" in verdict(waiting(0), waiting(1), late, waiting(3)).cause


def test_ranks_that_run_no_python_are_judged_by_what_their_devices_say() -> None:
    """Both wait on the host, in the next layer, for a kernel of rank 1 that does not end."""
    next_layer = moment(replace(AT, layer=4, phase="attend"), passed=99)
    deaf = {"moment": next_layer, "collectives": None, "deaf": True, "fused": True, "device_launched": 1000.0}
    late = {"device": replace(AT, phase="combine"), "device_number": 97}
    stuck = {"device": replace(AT, phase="experts"), "device_number": 95}
    views = [replace(rank(0, launched=10), **deaf, **late), replace(rank(1, launched=11), **deaf, **stuck)]
    group = Group(name="3", what="ep", ranks=(0, 1), launched=0)
    views = [replace(view, groups=(*view.groups, group)) for view in views]
    stall = verdict(*views, world_size=2)
    assert (stall.kind, stall.ranks, stall.layer, stall.phase) == ("backend_stuck", (1,), 3, "experts")
    assert "the GPU does not finish it" in stall.cause


def test_where_no_device_is_known_ranks_that_run_no_python_do_not_accuse_each_other() -> None:
    """Their last pulses are of different moments: that one has launched fewer collectives says nothing."""
    deaf = {"moment": moment(replace(AT, phase="attend")), "collectives": None, "deaf": True, "fused": True}
    views = [replace(rank(number, launched=10 + number), **deaf) for number in (0, 1)]
    stall = verdict(*views, world_size=2)
    assert (stall.kind, stall.ranks) == ("backend_stuck", (0, 1))
    assert "native code holds the interpreter" in stall.cause
    assert verdict(*[replace(view, fused=False) for view in views], world_size=2).kind == "all_idle"


def test_without_a_close_look_the_counters_say_who_is_behind() -> None:
    views = [rank(number, launched=11 if number != 1 else 10) for number in range(4)]
    views = [replace(view, collectives=None, moment=moment(replace(AT, phase="experts"))) for view in views]
    stall = verdict(*views)
    assert (stall.kind, stall.ranks) == ("rank_absent", (1,))


def test_other_operations_in_one_place_are_an_order() -> None:
    views = [waiting(0), rank(1, entry(11, op="all_gather"), launched=11), waiting(2), waiting(3)]
    stall = verdict(*views)
    assert (stall.kind, stall.ranks) == ("collective_order", (1,))
    assert "different operations" in stall.cause


def test_two_groups_entered_in_opposite_order_are_an_order() -> None:
    first, second = (Group(name=name, what=name, ranks=(0, 1), launched=0) for name in "ab")

    def view(number: int, own: str) -> RankView:
        groups = tuple(replace(group, launched=int(group.name == own)) for group in (first, second))
        return replace(rank(number, entry(1, group=own, what=own)), groups=groups)

    stall = verdict(view(0, "a"), view(1, "b"), world_size=2)
    assert (stall.kind, stall.ranks) == ("collective_order", (0, 1))
    assert "collective 1 of a for rank 1" in stall.cause
    assert "collective 1 of b for rank 0" in stall.cause


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (entry(11, size=(5,)), "different shapes"),
        (entry(11, dtype="Double"), "different dtypes"),
    ],
    ids=["shape", "dtype"],
)
def test_other_arguments_in_one_collective_are_named(odd: Launched, words: str) -> None:
    stall = verdict(waiting(0), waiting(1), rank(2, odd, launched=11), waiting(3))
    assert (stall.kind, stall.ranks) == ("collective_arguments", (2,))
    assert words in stall.cause


def test_a_root_may_give_what_the_others_do_not() -> None:
    views = [rank(number, entry(11, op="scatter", size=(4,) if number else ()), launched=11) for number in range(4)]
    assert verdict(*views).kind == "collective_stuck"


def exchange(sent: int, received: int) -> Launched:
    return entry(11, op="all_to_all", size=(sent, 8), results=((received, 8),))


def test_splits_that_do_not_meet_are_named() -> None:
    views = [rank(number, exchange(4, 4 + (number == 3)), launched=11) for number in range(4)]
    stall = verdict(*views)
    assert stall.kind == "collective_arguments"
    assert "splits that do not meet (128 elements are sent, 136 expected)" in stall.cause
    assert verdict(*[rank(number, exchange(4, 4), launched=11) for number in range(4)]).kind == "collective_stuck"


def test_an_error_of_torch_about_a_mismatch_is_a_mismatch_and_any_other_error_is_not() -> None:
    def views(error: str) -> list[RankView]:
        odd = rank(1, entry(11, size=(5,)), launched=11, state="failed", raised=raised(1, error))
        return [waiting(0), odd, waiting(2), waiting(3)]

    assert verdict(*views("RuntimeError: op.preamble.length <= op.nbytes")).kind == "collective_arguments"
    assert verdict(*views("ValueError: bad batch")).kind == "rank_raised"


def test_a_collective_that_all_have_come_to_is_stuck_itself() -> None:
    stall = verdict(*[waiting(number) for number in range(4)])
    assert (stall.kind, stall.ranks) == ("collective_stuck", (0, 1, 2, 3))


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_a_dispatcher_that_does_not_return_is_named_where_no_collective_is_pending(phase: str) -> None:
    inside = [rank(number, moment=moment(replace(AT, phase=phase))) for number in range(4)]
    stall = verdict(*inside)
    assert (stall.kind, stall.ranks, stall.phase, stall.layer) == ("backend_stuck", (0, 1, 2, 3), phase, 3)
    stall = verdict(waiting(0), inside[1], waiting(2), waiting(3))
    assert (stall.kind, stall.ranks) == ("backend_stuck", (1,))


def test_the_phase_that_a_device_has_not_finished_counts_where_the_host_is_ahead() -> None:
    ahead = moment(Place(step=5, layer=4, phase="attend"))
    views = [rank(number, moment=ahead, device=replace(AT, phase="combine")) for number in range(4)]
    stall = verdict(*views)
    assert (stall.kind, stall.layer, stall.phase) == ("backend_stuck", 3, "combine")
    assert stall.table[0].device == replace(AT, phase="combine")


def test_collectives_behind_a_stuck_kernel_of_a_fused_dispatcher_are_not_the_cause() -> None:
    behind = [replace(waiting(number), device=replace(AT, phase="dispatch"), fused=True) for number in range(4)]
    stall = verdict(*behind)
    assert (stall.kind, stall.phase) == ("backend_stuck", "dispatch")
    assert verdict(*[replace(view, fused=False) for view in behind]).kind == "collective_stuck"


def on_device(number: int, phase: str, *collectives: Launched, **more) -> RankView:
    """Return a rank whose host is ahead of its GPU, which was given all of `phase` at 100 s and does not finish it."""
    values = {"device_number": 80, "device_launched": 100.0, **more}
    return rank(number, *collectives, device=replace(AT, phase=phase), **values)


def test_a_kernel_that_does_not_end_is_told_from_the_collectives_queued_behind_it() -> None:
    stuck = on_device(1, "experts", entry(11, created=101.0), launched=11)
    others = [on_device(number, "combine", entry(11, created=99.0), launched=11) for number in (0, 2, 3)]
    stall = verdict(stuck, *others)
    assert (stall.kind, stall.ranks, stall.layer, stall.phase) == ("backend_stuck", (1,), 3, "experts")
    assert "the GPU does not finish it" in stall.cause
    assert "ranks 0, 2, 3 wait in all_reduce Float [4], collective 11" in stall.cause
    assert [row.waits_in != "" for row in stall.table] == [False, True, True, True]
    in_it = on_device(1, "experts", entry(11, created=99.0), launched=11)
    assert verdict(in_it, *others).kind == "collective_stuck"


def test_a_kernel_that_does_not_end_is_named_where_no_rank_waits_for_another() -> None:
    stall = verdict(on_device(0, "attend"), world_size=1)
    assert (stall.kind, stall.ranks, stall.phase) == ("backend_stuck", (0,), "attend")
    assert "CUDA_LAUNCH_BLOCKING" in stall.advice


def in_exchange(number: int, **more) -> RankView:
    """Return a rank in an exchange of a fused dispatcher."""
    view = rank(number, fused=True, **{"moment": moment(passed=84), **more})
    return replace(view, groups=(*view.groups, Group(name="1", what="ep", ranks=(0, 1), launched=0)))


def test_who_does_not_come_to_an_exchange_that_torch_does_not_know_is_named() -> None:
    late = in_exchange(1, moment=moment(replace(AT, phase="attend"), passed=82))
    stall = verdict(in_exchange(0), late, world_size=2)
    assert (stall.kind, stall.ranks, stall.phase) == ("rank_absent", (1,), "attend")
    assert "rank 0 waits in the dispatcher's own exchange" in stall.cause
    in_kernel = replace(late, device=replace(AT, phase="experts", layer=2), device_number=70)
    stall = verdict(in_exchange(0), in_kernel, world_size=2)
    assert (stall.kind, stall.ranks, stall.layer, stall.phase) == ("backend_stuck", (1,), 2, "experts")
    both = verdict(in_exchange(0), in_exchange(1), world_size=2)
    assert (both.kind, both.ranks, both.phase) == ("backend_stuck", (0, 1), "dispatch")
    ahead = in_exchange(1, moment=moment(replace(AT, phase="experts"), passed=86))
    assert verdict(in_exchange(0), ahead, world_size=2).ranks == (0,)


def test_a_rank_that_is_late_since_it_waits_itself_is_not_the_cause() -> None:
    waits = replace(in_exchange(1, moment=moment(replace(AT, phase="data"), passed=70)), collectives=(entry(11),))
    waits = replace(waits, groups=(replace(WORLD, launched=11), *waits.groups[1:]))
    late = rank(2, moment=moment(Place(step=5, phase="data"), passed=70))
    stall = verdict(in_exchange(0, launched=11), waits, late, rank(3, launched=11, state="finished"))
    assert (stall.kind, stall.ranks, stall.phase) == ("rank_absent", (2,), "data")


def test_ranks_that_wait_for_nothing_that_torch_knows_are_idle() -> None:
    idle = [rank(number, moment=moment(replace(AT, phase="optimizer"), "left")) for number in range(4)]
    stall = verdict(*idle)
    assert (stall.kind, stall.ranks) == ("all_idle", (0, 1, 2, 3))
    assert "after step 5" in stall.cause


def test_a_rank_without_a_beacon_has_not_started() -> None:
    stall = verdict(waiting(0), waiting(1), waiting(3))
    assert (stall.kind, stall.ranks) == ("rank_absent", (2,))
    assert "rank 2 of 4 have not started" in stall.cause


def test_of_a_job_of_which_no_rank_has_a_beacon_all_are_named() -> None:
    stall = judge([], world_size=2, began=3600.0)
    assert (stall.kind, stall.ranks, stall.table) == ("rank_absent", (0, 1), ())
    assert (stall.step, stall.since) == (-1, "1970-01-01T01:00:00+00:00")
    assert report_lines(stall)[-2] == f"verdict: rank_absent: {stall.cause}"
    assert "ranks 0, 1 of 2 have not started" in stall.cause


def test_a_rank_that_waits_for_a_message_points_at_its_sender() -> None:
    receive = entry(3, op="recv 0<-1", p2p=True)
    late = rank(1, moment=moment(Place(step=5, stage=1, layer=4, phase="experts")))
    stall = verdict(rank(0, receive), late, world_size=2)
    assert (stall.kind, stall.ranks) == ("rank_absent", (1,))
    assert "message 3" in stall.cause


def test_a_stage_between_two_phases_waits_for_one_that_is_inside_of_a_phase() -> None:
    def stage(number: int, event: str, **more) -> RankView:
        view = rank(number, moment=moment(event=event, **more))
        return replace(view, groups=(*view.groups, Group(name="2", what="pp", ranks=(0, 1), launched=0)))

    late = stage(1, "entered", place=replace(AT, phase="attend"))
    stall = verdict(stage(0, "left"), late, world_size=2)
    assert (stall.kind, stall.ranks, stall.phase) == ("rank_absent", (1,), "attend")
    assert "rank 0 waits in a message of the pipeline" in stall.cause
    idle = verdict(stage(0, "entered", place=replace(AT, phase="attend")), late, world_size=2)
    assert (idle.kind, idle.ranks) == ("all_idle", (0, 1))
    trainer = stage(0, "left", place=Place(step=5, phase="optimizer"))
    assert verdict(trainer, late, world_size=2).kind == "all_idle"


def test_of_a_large_job_the_table_shows_a_part() -> None:
    stall = judge([waiting(number) for number in range(100)], world_size=100)
    assert len(report_lines(stall)) == 1 + 64 + 1 + 2
    assert "... 36 more ranks" in report_lines(stall)
