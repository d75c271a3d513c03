"""A pool of warm rank processes: runs one function on several ranks without importing torch anew for each case."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from moeframe.errors import JobFailedError
from moeframe.testing.rank_worker import Answer, Call, ModuleFile

__all__ = ["RankError", "RankFailure", "RankPool", "RankTimeoutError"]

T = TypeVar("T")

START_LIMIT_S: Final = 180.0
"""Importing torch takes 3 s on an idle machine, and far longer where many share a disk."""
GRACE_S: Final = 3.0
"""After one rank failed, the others get this long to answer (design.md, section 5)."""
LOG_LIMIT: Final = 8000
"""Characters of a rank's output that an error shows."""


@dataclass(frozen=True, kw_only=True)
class RankFailure:
    """How one rank failed. `error` is None when the exception does not survive pickling, or the process died.

    `failed_at` is the machine's monotonic clock then; 0 for a process that died.
    """

    rank: int
    kind: str
    message: str
    failed_at: float = 0.0
    traceback: str = ""
    error: BaseException | None = None


class RankError(JobFailedError):
    """A function raised on a rank, or its process died.

    `rank` is the first that failed, `error` its exception, `failures` maps every rank that failed to how.
    """

    def __init__(self, message: str, failures: dict[int, RankFailure]) -> None:
        """Keep the failures, the first one first."""
        super().__init__(message)
        self.failures = failures
        self.rank = next(iter(failures))
        self.error = failures[self.rank].error


class RankTimeoutError(JobFailedError):
    """Ranks did not answer in time and were killed; `ranks` names them."""

    def __init__(self, message: str, ranks: tuple[int, ...]) -> None:
        """Keep the silent ranks."""
        super().__init__(message)
        self.ranks = ranks


class RankPool:
    """Up to `size` warm processes on this machine; each imports torch once and computes on one thread.

    A process starts when a call first needs it, and again after it was killed. None outlives this one: each ends when
    its pipe closes. `device` "cpu" runs on gloo; "cuda" on NCCL, with rank r on GPU r.
    Where there are fewer GPUs than ranks, ranks share them: right, but slow. One call at a time.
    """

    def __init__(self, size: int, *, device: Literal["cpu", "cuda"] = "cpu") -> None:
        """Make an empty pool; nothing starts yet."""
        self.size = size
        self.device = device
        self._folder = Path(tempfile.mkdtemp(prefix="moeframe-ranks-"))
        self._workers: dict[int, _Worker] = {}
        self._calls = 0

    def run(
        self, function: Callable[..., T], *args: object, world_size: int | None = None, timeout: float = 60.0
    ) -> list[T]:
        """Call ``function(*args)`` on ranks 0 to world_size - 1, inside a fresh default process group.

        Seeds are 0 at the start of every call. Arguments and results are pickled. The function must be one that a
        module's name reaches; a module that is on no path, as a collected test module, is loaded from its file.

        Args:
            function: what to call; gets the same arguments on every rank.
            args: pickled once.
            world_size: number of ranks, at most `size`; None: all.
            timeout: seconds until the ranks that have not answered are killed, process start not counted; also the
                timeout of the group's collectives.

        Returns:
            The results by rank.

        Raises:
            RankError: a rank raised or died. Its exception is the cause; the ranks that do not answer within 3 s after
                it are killed.
            RankTimeoutError: ranks did not answer in time; its message shows their Python stacks.
            TypeError: function or arguments cannot be pickled.
            ValueError: world_size is not in 1 to `size`.
        """
        world_size = self.size if world_size is None else world_size
        if not 1 <= world_size <= self.size:
            raise ValueError(f"world_size = {world_size}: this pool has 1 to {self.size} ranks")
        payload, modules = _pack(function, args)
        self._start(range(world_size))
        self._calls += 1
        store = self._folder / f"store-{self._calls}"
        busy = {rank: self._workers[rank] for rank in range(world_size)}
        try:
            for rank, worker in busy.items():
                call = Call(
                    rank=rank,
                    world_size=world_size,
                    store=str(store),
                    timeout_s=timeout,
                    search_path=tuple(sys.path),
                    modules=modules,
                    payload=payload,
                )
                worker.send(call)
            answers = self._collect(busy, timeout)
        finally:
            for rank, worker in busy.items():  # the ones still busy: after a failure, a timeout or Ctrl-C
                worker.kill()
                del self._workers[rank]
            store.unlink(missing_ok=True)
        return [pickle.loads(answers[rank]) for rank in range(world_size)]  # noqa: S301  # from our own processes

    def close(self) -> None:
        """End all processes and remove their logs."""
        for worker in self._workers.values():
            worker.kill()
        self._workers.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Close the pool."""
        self.close()

    def _start(self, ranks: Iterable[int]) -> None:
        """Have a living process for each rank; the missing ones start side by side."""
        started: list[_Worker] = []
        for rank in ranks:
            if rank in self._workers and self._workers[rank].process.poll() is not None:
                self._workers.pop(rank).kill()
            if rank not in self._workers:
                self._workers[rank] = _Worker(rank, self._folder / f"rank-{rank}.log", self.device)
                started.append(self._workers[rank])
        for worker in started:
            if worker.connection.poll(START_LIMIT_S) and worker.receive() == b"ready":
                continue
            output = worker.output()
            for other in started:
                self._workers.pop(other.rank).kill()
            raise RankTimeoutError(
                f"the process of rank {worker.rank} did not start (limit {START_LIMIT_S:.0f} s).\n{output}",
                (worker.rank,),
            )

    def _collect(self, busy: dict[int, _Worker], timeout: float) -> dict[int, bytes]:
        """Take answers out of `busy` until none is left; ranks that must be killed stay in it."""
        limit = time.monotonic() + timeout
        values: dict[int, bytes] = {}
        failures: dict[int, RankFailure] = {}
        outputs: dict[int, str] = {}
        while busy and (left := limit - time.monotonic()) > 0:
            ready = wait([worker.connection for worker in busy.values()], left)
            for rank, worker in [(rank, worker) for rank, worker in busy.items() if worker.connection in ready]:
                del busy[rank]
                raw = worker.receive()
                answer = None if raw is None else pickle.loads(raw)  # noqa: S301  # from our own process
                if answer is not None and not answer.failed:
                    values[rank] = answer.value
                    continue
                failures[rank] = worker.death() if answer is None else _failure(rank, answer)
                outputs[rank] = worker.output()
                limit = min(limit, time.monotonic() + GRACE_S)
        stacks = _stacks(busy)
        if failures:
            failures = dict(sorted(failures.items(), key=lambda item: item[1].failed_at))
            first = next(iter(failures.values()))
            raise RankError(_describe(failures, outputs, stacks), failures) from first.error
        if busy:
            ranks = tuple(busy)
            raise RankTimeoutError(_describe_silence(ranks, tuple(values), timeout, stacks), ranks)
        return values


class _Worker:
    """One process, its pipe and its log."""

    def __init__(self, rank: int, log: Path, device: str) -> None:
        self.rank = rank
        self._log = log
        self._log_start = 0
        self.connection: Connection[bytes, bytes]
        self.connection, far_end = Pipe()
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from moeframe.testing.rank_worker import main; main({far_end.fileno()}, {device!r})"
        )
        with log.open("wb") as output:
            self.process = subprocess.Popen(  # noqa: S603  # our own interpreter and program
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[far_end.fileno()],
                start_new_session=True,  # Ctrl-C reaches the caller, which ends its workers
                env={**_DEFAULT_ENVIRONMENT, **os.environ, **_FIXED_ENVIRONMENT},
            )
        far_end.close()

    def send(self, call: Call) -> None:
        """Send a call; the output from here on belongs to it."""
        self._log_start = self._log.stat().st_size
        try:
            self.connection.send_bytes(pickle.dumps(call))
        except OSError:  # the process is gone, which `receive` finds
            return

    def receive(self) -> bytes | None:
        """Return the next message, None when the process is gone."""
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError):
            return None

    def output(self) -> str:
        """Return what the process wrote since the call was sent, the last part of it."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")[-LOG_LIMIT:]

    def death(self) -> RankFailure:
        """Describe how the process ended; its end of the pipe is closed."""
        code = self.process.wait()
        how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with exit code {code}"
        return RankFailure(rank=self.rank, kind="process ended", message=f"the process ended {how}")

    def kill(self) -> None:
        """End the process at once."""
        self.connection.close()
        self.process.kill()
        self.process.wait()


_DEFAULT_ENVIRONMENT: Final = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
_FIXED_ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    # No multicast objects over NVLink.
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


class _Collector(pickle.Pickler):
    """Notes the module of every function and class that a pickle names."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: dict[str, ModuleFile] = {}

    def reducer_override(self, obj: Any) -> Any:
        module = sys.modules.get(getattr(obj, "__module__", None) or "")
        file = getattr(module, "__file__", None)
        if module is not None and file is not None:
            self.modules.setdefault(module.__name__, ModuleFile(name=module.__name__, file=file))
        return NotImplemented


def _pack(function: Callable[..., object], args: tuple[object, ...]) -> tuple[bytes, tuple[ModuleFile, ...]]:
    buffer = io.BytesIO()
    collector = _Collector(buffer)
    try:
        collector.dump((function, args))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(
            f"{name} and its arguments must be picklable to reach another process ({error}). "
            "Use a function at a module's top level, and plain data as arguments."
        ) from error
    return buffer.getvalue(), tuple(collector.modules.values())


def _failure(rank: int, answer: Answer) -> RankFailure:
    error = None if answer.value is None else pickle.loads(answer.value)  # noqa: S301  # from our own process
    return RankFailure(
        rank=rank,
        kind=answer.kind,
        message=answer.message,
        failed_at=answer.failed_at,
        traceback=answer.traceback,
        error=error,
    )


def _stacks(busy: dict[int, _Worker]) -> dict[int, str]:
    """Have the busy ranks write their Python stacks; return their output by rank."""
    for worker in busy.values():
        worker.process.send_signal(signal.SIGUSR1)
    if busy:
        time.sleep(0.3)
    return {rank: worker.output() for rank, worker in busy.items()}


def _describe(failures: dict[int, RankFailure], outputs: dict[int, str], stacks: dict[int, str]) -> str:
    parts = [f"rank {failure.rank}: {failure.kind}: {failure.message}" for failure in failures.values()]
    parts += [f"rank {rank}: no answer within {GRACE_S:.0f} s after that; killed" for rank in stacks]
    for rank, failure in failures.items():
        parts += [f"--- rank {rank}, traceback:\n{failure.traceback}"] if failure.traceback else []
        parts += [f"--- rank {rank}, output:\n{outputs[rank]}"] if outputs[rank] else []
    parts += [f"--- rank {rank}, output and stacks:\n{text}" for rank, text in stacks.items()]
    return "\n".join(parts)


def _describe_silence(
    silent: tuple[int, ...], answered: tuple[int, ...], timeout: float, stacks: dict[int, str]
) -> str:
    parts = [
        f"no answer within {timeout:g} s from rank(s) {', '.join(map(str, silent))}, now killed; "
        f"answered: {', '.join(map(str, sorted(answered))) or 'none'}"
    ]
    parts += [f"--- rank {rank}, output and stacks:\n{text}" for rank, text in stacks.items()]
    return "\n".join(parts)
