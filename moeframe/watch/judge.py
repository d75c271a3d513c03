"""The verdict: from what is known of every rank to what went wrong and where. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from moeframe.protocols.stall import Stall, StallKind
from moeframe.trace import Place, told
from moeframe.watch.advice import ADVICE, DIED_EARLY, NOT_STARTED, OVER, advice_on
from moeframe.watch.compare import Mismatch, mismatches, waits
from moeframe.watch.view import SILENT_S, UNSEEN, Launched, Raised, RankView

__all__ = ["judge", "ranks_text"]

_DATA_ENDS: Final = ("StopIteration", "IndexError", "EOFError")
"""What a data set raises that has no more."""
_SAME_S: Final = 1.0
"""Processes whose last signs of life lie this close died together."""

_NOTHING: Final[Mapping[int, str]] = {}


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks in words."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def judge(
    views: Sequence[RankView],
    *,
    world_size: int,
    began: float = 0.0,
    go_on: str = "",
    processes: Mapping[int, str] = _NOTHING,
    ended_by: Mapping[int, str] = _NOTHING,
    launcher_end: str = "",
) -> Stall:
    """Say what went wrong in a job that stands still or has failed.

    Args:
        views: the ranks that have started; none, where not one has.
        world_size: ranks of the job.
        began: when the ranks were awaited first, seconds since the epoch; told where none has started.
        go_on: where the job can go on from, a sentence for who has done what else the advice says.
        processes: how the processes of ranks do, where that is known; told of those that have not started.
        ended_by: how processes of ranks ended, in words, where that is known; told of those that had not started.
        launcher_end: how the process that started the ranks has ended, in words, where it ended before them.
    """
    missing = sorted(set(range(world_size)) - {view.rank for view in views})
    lost = [rank for rank in missing if rank in ended_by or processes.get(rank) == "dead"]
    found = _raised(views) or _orphaned(views, launcher_end)
    if found is None and not (lost and not any(view.ended_by for view in views)):
        found = _died(views) or _stopped(views)
    if found is None and missing:
        kind, ranks, cause, advice = _not_started(missing, lost, world_size, processes, ended_by, launcher_end)
        place, since = Place(), min((view.since for view in views), default=began)
    else:
        kind, guilty, cause = found or _mismatched(views) or _waiting(views) or _silent(views)
        ranks, advice, first = [view.rank for view in guilty], advice_on(kind, guilty), guilty[0]
        place, since = first.place, first.since
        if first.raised is not None and kind in ("rank_raised", "data_ended"):
            place = first.raised.place
    return Stall(
        kind=kind,
        ranks=tuple(ranks),
        step=place.step,
        micro_batch=place.micro_batch,
        layer=place.layer,
        phase=place.phase,
        direction=place.direction,
        since=datetime.fromtimestamp(since, tz=UTC).isoformat(timespec="seconds"),
        cause=cause,
        advice=" ".join(filter(None, (advice, go_on if advice != OVER else ""))),
        table=tuple(view.row() for view in views),
    )


_Found = tuple[StallKind, list[RankView], str]


def _where(view: RankView) -> str:
    return told("at" if view.inside else "after", view.place)


def _each(views: Iterable[RankView]) -> str:
    return "; ".join(f"rank {view.rank} {_where(view)}" for view in views)


def _process(view: RankView) -> str:
    return f"(process {view.pid} on {view.host})"


def _raised(views: Sequence[RankView]) -> _Found | None:
    reports = [(view.raised, view) for view in views if view.raised is not None]
    first_hand = sorted(
        ((report, view) for report, view in reports if not report.secondhand), key=lambda pair: pair[0].time
    )
    silent_deaths = any(map(_without_a_word, views))
    if not first_hand:
        if not reports or silent_deaths:
            return None
        first_hand = sorted(reports, key=lambda pair: pair[0].time)[:1]  # a connection that was lost by itself
        mismatch = _arguments(views)
        if mismatch is not None:
            return mismatch
    report, view = first_hand[0]
    if report.error.startswith("RuntimeError") and (mismatch := _arguments(views)) is not None:
        return mismatch
    cause = (
        f"rank {view.rank} raised {told('at', report.place)}: {report.error.splitlines()[0] if report.error else '?'}"
    )
    return _raised_kind(report), [view], cause


def _raised_kind(report: Raised) -> StallKind:
    ended = report.place.phase in ("data", "evaluate") and report.error.startswith(_DATA_ENDS)
    return "data_ended" if ended else "rank_raised"


def _without_a_word(view: RankView) -> bool:
    """Whether a rank has gone and left no report: killed, or unable to write it."""
    return view.state == "dead" or (view.state == "failed" and view.raised is None)


def _died(views: Sequence[RankView]) -> _Found | None:
    dead = [view for view in views if _without_a_word(view)]
    if not dead:
        return None
    told = [view for view in dead if view.ended_by]
    first = min(view.alive_at for view in told or dead)
    guilty = [view for view in told or dead if view.alive_at <= first + _SAME_S]
    guilty = [view for view in guilty if "SIGABRT" not in view.how_it_ended] or guilty  # gloo ends who loses a peer
    if (aborted := _aborted(guilty, views)) is not None:
        return aborted
    how = "; ".join(
        f"rank {view.rank} {view.how_it_ended} {_where(view)} {_process(view)}{_line(view)}" for view in guilty
    )
    peers = sorted({str(entry) for view in views if view not in dead for entry in view.reached})
    meanwhile = f"; the others were in {', '.join(peers)}" if peers else ""
    return "rank_died", guilty, f"{how}{meanwhile}"


def _line(view: RankView) -> str:
    return f", in {view.crash.where}" if view.crash and view.crash.where else ""


def _orphaned(views: Sequence[RankView], launcher_end: str) -> _Found | None:
    """Judge ranks that the kernel has ended since the process that started them has ended."""
    dead = [view for view in views if view.state == "dead"]
    if not launcher_end or not dead or any(view.crash or view.ended_by for view in dead):
        return None
    last = max(view.alive_at for view in dead)
    early = [view for view in dead if last - view.alive_at > SILENT_S]
    before = "".join(f"; rank {view.rank} had given no sign of life for {last - view.alive_at:.0f} s" for view in early)
    still_s = last - max(view.since for view in dead)
    if still_s > SILENT_S and not early:
        before = f"; no rank had moved for {still_s:.0f} s"
    return "launcher_died", dead, f"{launcher_end}, and the ranks were ended with it ({_each(dead)}){before}"


def _aborted(dead: Sequence[RankView], views: Sequence[RankView]) -> _Found | None:
    """Judge a death inside of a collective of gloo, which ends a process that is sent more than it expects."""
    guilty = [view for view in dead if view.crash and view.crash.signal == "SIGABRT" and view.crash.collective]
    if not guilty or any(view.gpu for view in guilty):  # where NCCL's own threads abort for other reasons
        return None
    how = "; ".join(f"rank {view.rank} {_where(view)} in {view.crash.collective}" for view in guilty if view.crash)
    last = {view.rank: max(view.collectives, key=lambda entry: entry.created) for view in views if view.collectives}
    others = "; ".join(
        f"rank {view.rank}: {last[view.rank]}" for view in views if view.rank in last and view not in dead
    )
    gave = f". Others gave {others}" if others else ""
    return "collective_arguments", guilty, f"a peer sent more than expected, and gloo ended (SIGABRT) {how}{gave}"


def _stopped(views: Sequence[RankView]) -> _Found | None:
    stopped = [view for view in views if view.state == "stopped"]
    if not stopped:
        return None
    each = "; ".join(f"rank {view.rank} {_where(view)} {_process(view)}" for view in stopped)
    return "rank_stopped", stopped, f"stopped by a signal or a debugger: {each}"


def _not_started(
    missing: Sequence[int],
    lost: Sequence[int],
    world_size: int,
    processes: Mapping[int, str],
    ended_by: Mapping[int, str],
    launcher_end: str,
) -> tuple[StallKind, Sequence[int], str, str]:
    """Judge a job of which ranks have no beacon, for which the others wait; returns kind, ranks, cause and advice.

    `lost` are those of them whose processes have ended; what waits for them may have been ended since.
    """
    if launcher_end:
        cause = f"{launcher_end} before {ranks_text(missing)} of {world_size} had started"
        return "launcher_died", missing, cause, ADVICE["launcher_died"]
    if lost:
        how = "; ".join(f"rank {rank} {ended_by.get(rank, UNSEEN)}" for rank in lost)
        return "rank_died", lost, f"{how} before it had started: no beacon of it is there", DIED_EARLY
    cause = f"{ranks_text(missing)} of {world_size} have not started: no beacon of theirs is there"
    stopped = [rank for rank in missing if processes.get(rank) == "stopped"]
    if not stopped:
        return "rank_absent", missing, cause, NOT_STARTED
    cause += f"; the process of {ranks_text(stopped)} is stopped by a signal or a debugger"
    return "rank_stopped", stopped, cause, ADVICE["rank_stopped"]


def _mismatched(views: Sequence[RankView]) -> _Found | None:
    for mismatch in mismatches(views):
        return _of_mismatch(views, mismatch)
    return None


def _arguments(views: Sequence[RankView]) -> _Found | None:
    found = list(mismatches(views))
    return _of_mismatch(views, found[-1]) if found else None


def _of_mismatch(views: Sequence[RankView], mismatch: Mismatch) -> _Found:
    guilty = [view for view in views if view.rank in mismatch.odd]
    kind: StallKind = "collective_order" if mismatch.order else "collective_arguments"
    return kind, guilty, f"{mismatch} ({_each(guilty)})"


def _waiting(views: Sequence[RankView]) -> _Found | None:
    """Judge by who waits for whom; None where nobody waits in a collective."""
    waiting = waits(views)
    if not waiting:
        return None
    known = {view.rank: view for view in views}
    awaited = {rank for absent in waiting.values() for rank in absent}
    if not awaited:
        return _all_there([known[rank] for rank in sorted(waiting)])
    ends = [known[rank] for rank in sorted(awaited) if rank not in waiting]
    if not ends:
        return _cycle(waiting, known)
    behind = {view.rank for view in ends}
    there = _waiters(waiting, behind)
    finished = [view for view in ends if view.state == "finished"]
    if finished:
        return "data_ended", finished, f"{ranks_text([view.rank for view in finished])} has ended, and {there}"
    stuck = _in_backends(ends)
    if stuck is not None:
        return stuck[0], stuck[1], f"{stuck[2]}; {there}"
    cause = f"{_each(ends)} does not come; {there}"
    deaf = [view.rank for view in ends if view.deaf]
    if deaf:
        cause += f"; no Python thread of {ranks_text(deaf)} runs: native code holds the interpreter"
    return "rank_absent", ends, cause


def _waiters(waiting: Mapping[int, Mapping[int, Launched]], behind: Collection[int]) -> str:
    """Say which ranks wait for some of those that are behind, and in what."""
    found: dict[str, list[int]] = {}
    for rank in sorted(waiting):
        entry = next((entry for other, entry in waiting[rank].items() if other in behind), None)
        if entry is not None:
            found.setdefault(str(entry), []).append(rank)
    return ", ".join(
        f"{ranks_text(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in {entry}" for entry, ranks in found.items()
    )


def _all_there(guilty: list[RankView]) -> _Found:
    """Judge ranks that have all come to what they wait in."""
    if all(view.fused and view.device is not None and view.exchanging for view in guilty):
        # What is pending was launched behind a kernel of the dispatcher that does not end.
        return "backend_stuck", guilty, f"{_each(guilty)}: the dispatcher's kernel does not end on the device"
    pending = guilty[0].reached[0]
    return "collective_stuck", guilty, f"all ranks have come to {pending}, and it does not end ({_each(guilty)})"


def _cycle(waiting: dict[int, dict[int, Launched]], known: dict[int, RankView]) -> _Found:
    """Name the ranks of a ring in which each waits for the next."""
    path, rank = [], min(rank for rank, absent in waiting.items() if absent)
    while rank not in path:
        path.append(rank)
        rank = min(waiting[rank], default=rank)
    ring = [known[member] for member in sorted(path[path.index(rank) :])]
    texts = "; ".join(
        f"rank {view.rank} {_where(view)} waits in {entry} for rank {other}"
        for view in ring
        for other, entry in list(waiting[view.rank].items())[:1]
    )
    return "collective_order", ring, f"the ranks wait for each other: {texts}"


def _in_backends(views: Sequence[RankView]) -> _Found | None:
    """Judge by ranks that are in a call or a kernel which waits for no other rank, as far as is known."""
    stuck = [view for view in views if view.in_kernel and not (view.fused and view.in_dispatcher)]
    if stuck:
        known = "" if any(view.deaf for view in stuck) else ", and is in no collective of torch"
        return "backend_stuck", stuck, f"{_each(stuck)}: the GPU does not finish it{known}"
    inside = [view for view in views if view.in_dispatcher]
    if inside:
        cause = f"{_each(inside)}: the dispatcher does not return, and no collective of torch is pending in it"
        return "backend_stuck", inside, cause
    return None


def _silent(views: Sequence[RankView]) -> _Found:
    """Judge a job of which no rank waits in a collective."""
    there = [view for view in views if view.state != "finished"]
    if not there:
        return "all_idle", list(views), f"training is over, and a process does not end ({_each(views)})"
    stuck = _in_backends(there)
    if stuck is not None:
        return stuck
    deaf = [view for view in there if view.deaf]
    if deaf:
        least = min(view.progress for view in deaf)
        behind = [view for view in deaf if view.progress == least]
        kind: StallKind = "backend_stuck" if behind[0].fused else "all_idle"
        return kind, behind, f"{_each(behind)}: native code holds the interpreter, and no Python thread runs"
    return "all_idle", there, f"no rank moves, and none waits in a collective ({_each(there)})"
