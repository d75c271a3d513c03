"""Where a job is: one span around every phase of every layer.

Nothing listens by default, and then a span costs one check of an empty tuple. The collective ledger, the beacons, the
overlap measurement and the time budget of the bench all listen here; nothing else instruments the model.
A listener says how closely it wants to know of backward phases: `exact` spans need marks in the graph, which cost tens
of microseconds each; `begin` costs a few, and is told where a backward phase begins, and where the last one ends.
Importable without torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol, TypeAlias

__all__ = [
    "Backward",
    "Direction",
    "Listener",
    "Phase",
    "Place",
    "at",
    "begin",
    "current",
    "followed",
    "listen",
    "listening",
    "span",
    "told",
]

Phase: TypeAlias = Literal[
    "",
    "data",
    "embed",
    "attend",
    "dispatch",
    "experts",
    "combine",
    "head",
    "gradients",
    "optimizer",
    "evaluate",
    "save",
]
Direction: TypeAlias = Literal["forward", "backward"]
Backward: TypeAlias = Literal["exact", "begin"]


_START: Final = "before the first step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One position in a job. `layer` is the global layer index; -1 where a field has no meaning."""

    step: int = -1
    micro_batch: int = -1
    stage: int = 0
    layer: int = -1
    phase: Phase = ""
    direction: Direction = "forward"

    def __str__(self) -> str:
        """Return the place in words, leaving out what is unknown."""
        parts = [f"step {self.step}"] if self.step >= 0 else []
        parts += [f"micro-batch {self.micro_batch}"] if self.micro_batch >= 0 else []
        parts += [f"layer {self.layer}"] if self.layer >= 0 else []
        parts += [f"{self.phase} ({self.direction})"] if self.phase else []
        return ", ".join(parts) or _START


def told(word: str, place: Place | str) -> str:
    """Return a place, or its text, behind a word such as ``at`` or ``after``; before the first step it needs none."""
    text = str(place)
    return text if text == _START else f"{word} {text}"


class Listener(Protocol):
    """Told of every span. Both methods run on the thread of the phase and must be quick."""

    def enter(self, place: Place) -> None:
        """Called just before the phase runs. Where backward phases only `begin`, a `leave` follows the last one."""

    def leave(self, place: Place) -> None:
        """Called just after the phase ran, also when it raised."""


_listeners: tuple[Listener, ...] = ()
_num_exact: int = 0
_ambient: Place = Place()
_begun: Place | None = None
"""The backward phase that began last, until it has ended."""


def current() -> Place:
    """Return the innermost place this process has entered, for error messages and reports."""
    return _ambient


def listening() -> bool:
    """Say whether anyone wants exact spans of backward phases; the model marks their ends only then."""
    return _num_exact > 0


def followed() -> bool:
    """Say whether anyone listens at all; the model reports where backward phases begin only then."""
    return bool(_listeners)


@contextmanager
def listen(listener: Listener, *, backward: Backward = "exact") -> Iterator[None]:
    """Tell `listener` of every span entered inside the block, and of backward phases as closely as it says."""
    global _listeners, _num_exact
    exact = backward == "exact"
    _listeners = (*_listeners, listener)
    _num_exact += exact
    try:
        yield
    finally:
        _listeners = tuple(other for other in _listeners if other is not listener)
        _num_exact -= exact


def begin(*, layer: int, phase: Phase) -> None:
    """Say that the backward of a phase begins now: there this process is until the enclosing `at` or span ends."""
    global _ambient, _begun
    before = _ambient
    _ambient = _begun = place = Place(  # `replace` takes twice as long
        step=before.step,
        micro_batch=before.micro_batch,
        stage=before.stage,
        layer=layer,
        phase=phase,
        direction="backward",
    )
    for listener in _listeners:
        listener.enter(place)


@contextmanager
def at(
    *, step: int | None = None, micro_batch: int | None = None, stage: int | None = None, phase: Phase | None = None
) -> Iterator[Place]:
    """Set the fields that later spans inherit: the trainer sets `step`, the schedule `micro_batch` and `stage`."""
    global _ambient, _begun
    before = _ambient
    _ambient = replace(
        before,
        step=before.step if step is None else step,
        micro_batch=before.micro_batch if micro_batch is None else micro_batch,
        stage=before.stage if stage is None else stage,
        phase=before.phase if phase is None else phase,
    )
    # No `finally`: after an exception the innermost place stays, for whoever reports where it arose.
    yield _ambient
    last, _ambient = _ambient, before
    if last is _begun:
        _begun = None
        for listener in _listeners:
            listener.leave(last)


class _Span:
    """A span; a class, since one made by `contextmanager` takes twice as long."""

    __slots__ = ("_before", "_place", "_told")

    def __init__(self, place: Place) -> None:
        self._place = place

    def __enter__(self) -> None:
        global _ambient
        self._before, _ambient = _ambient, self._place
        self._told = _listeners
        for listener in self._told:
            listener.enter(self._place)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        global _ambient
        if kind is None:
            _ambient = self._before
        for listener in self._told:
            listener.leave(self._place)


def span(
    *,
    step: int | None = None,
    micro_batch: int | None = None,
    stage: int | None = None,
    layer: int = -1,
    phase: Phase = "",
    direction: Direction = "forward",
) -> AbstractContextManager[None]:
    """Mark a phase. Fields left out are inherited from the enclosing `at`.

    After an exception `current()` still names the place where it arose.
    """
    place = Place(
        step=_ambient.step if step is None else step,
        micro_batch=_ambient.micro_batch if micro_batch is None else micro_batch,
        stage=_ambient.stage if stage is None else stage,
        layer=layer,
        phase=phase,
        direction=direction,
    )
    return _Span(place)
