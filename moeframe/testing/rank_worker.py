"""The process behind one rank of a `RankPool`: waits for a function, runs it inside a process group, answers."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import importlib
import importlib.util
import os
import pickle
import queue
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from moeframe import trace

__all__ = ["Answer", "Call", "ModuleFile", "main"]


@dataclass(frozen=True, kw_only=True)
class ModuleFile:
    """A module that a call refers to: its name in the caller, and its file, to load what no path finds."""

    name: str
    file: str


@dataclass(frozen=True, kw_only=True)
class Call:
    """One function call, as it travels to a worker. `payload` is the pickled (function, args)."""

    rank: int
    world_size: int
    store: str
    timeout_s: float
    search_path: tuple[str, ...]
    modules: tuple[ModuleFile, ...]
    payload: bytes


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a call.

    `value` is the pickled result, or the pickled exception when it survives pickling. `failed_at` is the machine's
    monotonic clock when the exception arose: the first to fail is the cause, the others often fail because of it.
    """

    failed: bool
    value: bytes | None
    failed_at: float = 0.0
    kind: str = ""
    message: str = ""
    traceback: str = ""


def main(descriptor: int, device: str) -> None:
    """Serve calls that arrive at `descriptor` until its other end is closed, also by the caller's death."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    connection: Connection[bytes, bytes] = Connection(descriptor)
    calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, calls), daemon=True).start()

    import torch
    import torch.distributed

    torch.set_num_threads(1)
    connection.send_bytes(b"ready")
    while True:
        connection.send_bytes(pickle.dumps(_answer(calls.get(), device)))


def _receive(connection: Connection[bytes, bytes], calls: queue.SimpleQueue[Call]) -> None:
    """Read calls on a thread of its own, so that the caller's death ends this process in the middle of a call too."""
    while True:
        try:
            calls.put(pickle.loads(connection.recv_bytes()))  # noqa: S301  # comes from our own parent
        except (EOFError, OSError):
            os._exit(0)


def _answer(call: Call, device: str) -> Answer:
    failed_at: list[float] = []
    try:
        sys.path[:] = call.search_path
        for module in call.modules:
            _require(module)
        function, args = pickle.loads(call.payload)  # noqa: S301  # comes from our own parent
        # A span of nothing but defaults: what an earlier, failed call left as `trace.current()` is gone.
        with _process_group(call, device), _timed_failure(failed_at), trace.span(step=-1, micro_batch=-1, stage=0):
            result = pickle.dumps(function(*args))
    except BaseException as error:  # noqa: BLE001  # whatever it was, the caller must hear of it
        return _failure(error, failed_at[0] if failed_at else time.monotonic())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return Answer(failed=False, value=result)


@contextlib.contextmanager
def _timed_failure(failed_at: list[float]) -> Iterator[None]:
    """Note when the function failed, before the group is destroyed and makes other ranks fail too."""
    try:
        yield
    except BaseException:
        failed_at.append(time.monotonic())
        raise


def _failure(error: BaseException, failed_at: float) -> Answer:
    text = "".join(traceback.format_exception(error))
    try:
        value = pickle.dumps(error)
        pickle.loads(value)  # noqa: S301  # only what can be read back may travel
    except Exception:  # noqa: BLE001  # an exception may refuse pickling in any way
        value = None
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return Answer(failed=True, value=value, failed_at=failed_at, kind=kind, message=str(error), traceback=text)


def _require(module: ModuleFile) -> None:
    """Make `module` importable by its name: from the search path when that finds the same file, else from its file."""
    if module.name in sys.modules:
        return
    try:
        found = importlib.util.find_spec(module.name)
    except ModuleNotFoundError:
        found = None
    if found is not None and found.origin is not None and Path(found.origin).samefile(module.file):
        importlib.import_module(module.name)
        return
    spec = importlib.util.spec_from_file_location(module.name, module.file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[module.name] = loaded = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(loaded)
    except BaseException:
        del sys.modules[module.name]
        raise


@contextlib.contextmanager
def _process_group(call: Call, device: str) -> Iterator[None]:
    import torch
    from torch import distributed

    random.seed(0)
    torch.manual_seed(0)
    options: dict[str, Any] = {}
    if device == "cuda":
        found = torch.cuda.device_count()
        if call.world_size > found:
            os.environ["NCCL_HOSTID"] = f"rank-{call.rank}"  # else NCCL refuses two ranks on one GPU
        options["device_id"] = torch.device("cuda", call.rank % found)
        torch.cuda.set_device(options["device_id"])
    limit = datetime.timedelta(seconds=call.timeout_s)
    store = distributed.FileStore(call.store, call.world_size)  # type: ignore[attr-defined]  # untyped export
    distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=store,
        rank=call.rank,
        world_size=call.world_size,
        timeout=limit,
        **options,
    )
    try:
        # A function without a collective could end, and close its connections, while another rank still connects.
        if store.add("connected", 1) == call.world_size:
            store.set("all connected", "")
        store.wait(["all connected"], limit)
        yield
    finally:
        # Also closes every connection, which wakes the ranks that wait for this one.
        if distributed.is_initialized():
            distributed.destroy_process_group()
