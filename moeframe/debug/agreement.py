"""Ranks compare their entries through a store of their own: no collective, which would hang where the order differs."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, NoReturn

import torch.distributed as dist
from torch.distributed import DistStoreError, Store, TCPStore  # type: ignore[attr-defined]

from moeframe.debug.entries import Entry, disagreement
from moeframe.errors import ContractError, JobFailedError

__all__ = ["Agreement", "own_store"]

_FOUND: Final = "found"
_LOOK_S: Final = 1.0
"""How long a rank that lost its peers waits for what the ledger of another one has found."""
_LINGER_S: Final = 2.0
"""How long rank 0 keeps the store open for ranks that have not left, after it has."""


@contextmanager
def own_store() -> Iterator[Store]:
    """Hold open a store on rank 0 that all ranks of the default group reach. Collective at the start."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    server: TCPStore | None = None
    where: list[tuple[str, int] | None] = [None]
    if rank == 0:
        server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        where[0] = (socket.gethostname(), server.port)
    dist.broadcast_object_list(where, src=0)
    assert where[0] is not None
    host, port = where[0]
    address = "localhost" if host == socket.gethostname() else os.environ.get("MASTER_ADDR", host)
    store = TCPStore(address, port, is_master=False) if server is None else server
    try:
        yield store
    finally:
        _leave(store, rank, world_size)


def _leave(store: Store, rank: int, world_size: int) -> None:
    """Let the others read what they still need before the store closes with rank 0."""
    try:
        left = store.add("left", 1)
        until = time.monotonic() + _LINGER_S
        while rank == 0 and left < world_size and time.monotonic() < until:
            time.sleep(0.01)
            left = store.add("left", 0)
    except dist.DistError:  # the store has gone with rank 0: nothing is left to wait for
        pass


class Agreement:
    """Has ranks agree on each of their collectives before it starts.

    In each group its first rank compares, and the others wait for its verdict: every rank raises the same error.

    Args:
        store: that all ranks of the job reach.
        limit_s: how long a rank waits for the others.
    """

    def __init__(self, store: Store, limit_s: float) -> None:
        self._store = store
        self._limit_s = limit_s

    def collective(self, entry: Entry, ranks: Sequence[int]) -> None:
        """Wait until every rank of the group has come with the same collective.

        Raises:
            ContractError: they come with different ones.
            JobFailedError: a rank does not come in time, or rank 0 and the store have gone.
        """
        with self._reaching(entry):
            self._collective(entry, ranks)

    @contextmanager
    def _reaching(self, entry: Entry) -> Iterator[None]:
        try:
            yield
        except dist.DistNetworkError as error:
            raise JobFailedError(
                f"The ledger's store on rank 0 is gone ({error}): Connection closed by peer. The error of rank 0 says "
                f"why; this rank was about to enter {entry}."
            ) from error

    def _collective(self, entry: Entry, ranks: Sequence[int]) -> None:
        prefix = f"{entry.group}/{entry.sequence}"
        keys = [f"{prefix}/{rank}" for rank in ranks]
        self._store.set(f"last/{entry.rank}", str(entry))
        self._store.set(f"{prefix}/{entry.rank}", entry.to_json())
        if entry.rank == ranks[0]:
            verdict = self._judge(entry, ranks, keys)
            self._store.set(f"{prefix}/verdict", verdict)
            if entry.sequence > 1:  # all have read the one before
                self._store.delete_key(f"{entry.group}/{entry.sequence - 1}/verdict")
        else:
            verdict = self._verdict(entry, ranks, prefix)
        if verdict:
            self._fail(verdict)

    def _fail(self, verdict: str) -> NoReturn:
        self._store.set(_FOUND, verdict)
        raise _error(verdict)

    def found(self) -> ContractError | JobFailedError | None:
        """Return what the ledger of any rank has found; for a rank that failed because another one did."""
        try:
            return _error(self._store.get(_FOUND).decode()) if self._wait([_FOUND], _LOOK_S) else None
        except dist.DistNetworkError:
            return None

    def _judge(self, entry: Entry, ranks: Sequence[int], keys: Sequence[str]) -> str:
        """Return "" when all agree, else what to raise; with a leading "?" when a rank is missing."""
        if not self._wait(keys):
            return self._missing(entry, ranks, keys)
        entries = [Entry.from_json(text) for text in self._store.multi_get(list(keys))]
        for key in keys:
            self._store.delete_key(key)
        return disagreement(entries) or ""

    def _verdict(self, entry: Entry, ranks: Sequence[int], prefix: str) -> str:
        """Return what the first rank of the group has found."""
        key = f"{prefix}/verdict"
        first = f"{prefix}/{ranks[0]}"
        # The first rank may have come late and be waiting for a third one: its own limit counts then.
        if self._wait([key]) or (self._store.check([first]) and self._wait([key])):
            return self._store.get(key).decode()
        return self._missing(entry, ranks, [f"{prefix}/{rank}" for rank in ranks])

    def _wait(self, keys: Sequence[str], limit_s: float | None = None) -> bool:
        try:
            self._store.wait(list(keys), timedelta(seconds=self._limit_s if limit_s is None else limit_s))
        except DistStoreError:
            return False
        return True

    def _missing(self, entry: Entry, ranks: Sequence[int], keys: Sequence[str]) -> str:
        lines = []
        for rank, key in zip(ranks, keys, strict=True):
            if self._store.check([key]):
                continue
            last = f"last/{rank}"
            seen = self._store.get(last).decode() if self._store.check([last]) else ""
            lines.append(f"  rank {rank}: " + (f"last entered {seen}" if seen else "has entered no collective yet"))
        return (
            f"?Collective {entry.sequence} of group {entry.group} (ranks {list(ranks)}): not all ranks came within "
            f"{self._limit_s:g} s (debug.ledger_timeout_s). Waiting: rank {entry.rank} in {entry}. Missing:\n"
            + "\n".join(lines)
        )

    def message(self, entry: Entry, pair: str, *, sends: bool) -> None:
        """Compare a send with its receive, if the other rank has come already: who comes second compares.

        Raises:
            ContractError: dtype, number of elements or place in the pipeline do not fit.
        """
        with self._reaching(entry):
            self._message(entry, pair, sends=sends)

    def _message(self, entry: Entry, pair: str, *, sends: bool) -> None:
        own, other = ("send", "receive") if sends else ("receive", "send")
        prefix = f"{entry.group}/{pair}/{entry.sequence}"
        self._store.set(f"last/{entry.rank}", str(entry))
        self._store.set(f"{prefix}/{own}", entry.to_json())
        if self._store.add(f"{prefix}/ends", 1) < 2:
            return
        theirs = Entry.from_json(self._store.get(f"{prefix}/{other}"))
        for key in (own, other, "ends"):
            self._store.delete_key(f"{prefix}/{key}")
        if entry.operands != theirs.operands:
            self._fail(
                f"Message {entry.sequence} from rank to rank ({pair}) of group {entry.group}: different dtypes or "
                f"numbers of elements.\n  rank {entry.rank}: {entry}\n  rank {theirs.rank}: {theirs}"
            )


def _error(verdict: str) -> ContractError | JobFailedError:
    """Return the error of a verdict; a leading "?" says that a rank is missing."""
    return JobFailedError(verdict[1:]) if verdict.startswith("?") else ContractError(verdict)
