"""Offers: what a plugin puts on the table. Data only; building imports torch, offering does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from moeframe.protocols.compute import ComputeTraits
from moeframe.protocols.data import DatasetTraits, Tokenized, TokenizeRequest
from moeframe.protocols.dispatcher import Buffer, BufferRequest, DispatcherTraits
from moeframe.protocols.precision import Precision
from moeframe.protocols.schedule import ScheduleTraits
from moeframe.protocols.sharding import ShardingTraits, StateSpread

__all__ = [
    "ComputeOffer",
    "DatasetOffer",
    "DispatcherOffer",
    "ModuleNeed",
    "Needs",
    "NoOptions",
    "Offer",
    "ScheduleOffer",
    "ShardingOffer",
    "ToolNeed",
]


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """The options of a backend that has none."""


@dataclass(frozen=True, kw_only=True)
class ModuleNeed:
    """A module that must be importable; looked for without importing it.

    `version` is a PEP 440 specifier for `distribution` (``>=0.6,<0.7``). `install` is one sentence on how to get it.
    `attributes`: the module's source must bind one of these names at its top level; for several generations of a
    library under one name. `impostors`: exact versions of `distribution` that are something else, and what they are.
    """

    name: str
    install: str
    distribution: str | None = None
    version: str | None = None
    attributes: tuple[str, ...] = ()
    impostors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ToolNeed:
    """A program that must be found: on PATH, or in ``bin`` below the folder that a variable of `homes` names."""

    name: str
    install: str
    homes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What must be true of the machine. Checked before a process starts, as far as it can be known there."""

    modules: tuple[ModuleNeed, ...] = ()
    tools: tuple[ToolNeed, ...] = ()
    device_kinds: tuple[str, ...] = ("cpu", "cuda")
    compute_capability: tuple[int, int] | None = None
    notices: tuple[str, ...] = ()
    """Distributions that change how the backend works where they are installed; a run records their versions too."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A named backend.

    `name` matches ``[0-9]*[a-z][a-z0-9_]*`` and names the technique. `summary` is one line. `options` is a frozen
    dataclass with a default for every field; a recipe's `options:` are validated against it. `build` takes the options
    and the context of its kind, in that order, and may import torch.
    """

    kind: ClassVar[str] = ""

    name: str
    summary: str
    build: Callable[..., Any]
    options: type[Any] = NoOptions
    needs: Needs = field(default_factory=Needs)


@dataclass(frozen=True, kw_only=True)
class DispatcherOffer(Offer):
    """Offers a `Dispatcher`: ``build(options, DispatcherContext)``.

    `buffers(options, request)` says what it holds in device memory for the whole job; None: nothing.
    """

    kind: ClassVar[str] = "dispatcher"
    traits: Callable[[Any, Precision], DispatcherTraits]
    buffers: Callable[[Any, BufferRequest], tuple[Buffer, ...]] | None = None


@dataclass(frozen=True, kw_only=True)
class ShardingOffer(Offer):
    """Offers a `Sharding`: ``build(options)``.

    `spread(options)` says how state lies on the ranks, each tensor in the dtype of the optimizer's weights; None: it
    lies in another way.
    """

    kind: ClassVar[str] = "sharding"
    traits: Callable[[Any, Precision], ShardingTraits]
    spread: Callable[[Any], StateSpread] | None = None


@dataclass(frozen=True, kw_only=True)
class ScheduleOffer(Offer):
    """Offers a `Schedule`: ``build(options, ScheduleContext)``.

    `legal_micro_batches(options, pp, n)` returns None when n micro-batches are legal on pp pipeline ranks, else a
    sentence that lists legal numbers.
    """

    kind: ClassVar[str] = "schedule"
    traits: Callable[[Any, Precision], ScheduleTraits]
    legal_micro_batches: Callable[[Any, int, int], str | None]


@dataclass(frozen=True, kw_only=True)
class ComputeOffer(Offer):
    """Offers a `Compute`: ``build(options, ComputeContext)``."""

    kind: ClassVar[str] = "compute"
    traits: Callable[[Any, Precision], ComputeTraits]


@dataclass(frozen=True, kw_only=True)
class DatasetOffer(Offer):
    """Offers a `Dataset`: ``build(options, DatasetContext)``. Builds without torch.

    `tokenize(request)` writes texts as the tokens that this data set reads; `moeframe tokenize` calls it. None for a
    data set that reads no such files.
    """

    kind: ClassVar[str] = "data"
    traits: Callable[[Any, Precision], DatasetTraits]
    tokenize: Callable[[TokenizeRequest], Tokenized] | None = None
