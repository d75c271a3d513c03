"""Writes a run's metrics and expert loads to ``<run>/tensorboard/``, where TensorBoard is installed.

Installing the extra turns it on (``pip install 'moeframe[tensorboard]'``); ``MOEFRAME_BLOCKED_PLUGINS=tensorboard``
turns it off. A run never fails because of it. Imports torch and TensorBoard only when a run starts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from moeframe.hooks import hookimpl
from moeframe.protocols.loads import LayerLoad

if TYPE_CHECKING:
    from moeframe_observers.events import EventWriter

_LOG: Final = logging.getLogger(__name__)
_OFF: Final = "MOEFRAME_BLOCKED_PLUGINS=tensorboard turns it off"

_writer: EventWriter | None = None
"""Of the run of this process; None on ranks other than 0 and where nothing is to be written."""


@hookimpl
def moeframe_on_run_start(recipe: Any, run_dir: Path, rank: int) -> None:
    """Open the files on rank 0."""
    global _writer
    _writer = None
    if rank != 0:
        return
    if find_spec("tensorboard") is None:
        _LOG.info(
            "TensorBoard is not installed, so no files are written for it. Run: pip install moeframe[tensorboard]"
        )
        return
    directory = run_dir / "tensorboard"
    try:
        from moeframe_observers.events import EventWriter
    except Exception as error:  # noqa: BLE001  a broken installation raises whatever it likes
        _give_up(error)
        return
    _writer = EventWriter(directory, loads_every=recipe.train.loads_every)
    print(f"watch it:      tensorboard --logdir {directory}", flush=True)  # noqa: T201


@hookimpl
def moeframe_on_step_end(step: int, metrics: Mapping[str, float | str | None], loads: Sequence[LayerLoad]) -> None:
    """Write a step."""
    if _writer is None:
        return
    try:
        _writer.write(step, metrics, loads)
    except OSError as error:
        _give_up(error)


@hookimpl
def moeframe_on_run_end() -> None:
    """Close the files; a run that ends in any other way has lost nothing, since every step is flushed."""
    global _writer
    if _writer is not None:
        writer, _writer = _writer, None
        writer.close()


def _give_up(error: Exception) -> None:
    """Say that nothing more is written for TensorBoard, and write nothing more."""
    global _writer
    _writer = None
    _LOG.info("TensorBoard files are not written", exc_info=error)
    print(f"TensorBoard files are not written: {type(error).__name__}: {error} ({_OFF})", flush=True)  # noqa: T201
