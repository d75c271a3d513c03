"""`megatron_fsdp`: lays a model out by the package, unit by unit, and proves the package on a small model first."""

from __future__ import annotations

import logging

import torch
from torch import nn

from moeframe.errors import ContractError, PluginError
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import Meshes, ModelPlan, Sharding
from moeframe_megatron_fsdp import running
from moeframe_megatron_fsdp.engine import Engine, version
from moeframe_megatron_fsdp.flat import Run, in_rank_order
from moeframe_megatron_fsdp.names import Renamed, alias
from moeframe_megatron_fsdp.options import MegatronFsdpOptions
from moeframe_megatron_fsdp.sharded import MegatronFsdpModel, Piece
from moeframe_megatron_fsdp.trial import try_out
from moeframe_megatron_fsdp.units import mark, outermost

__all__ = ["MegatronFsdp", "lay_out"]

logger = logging.getLogger(__name__)


class MegatronFsdp(Sharding):
    """Lays a model out over the shards of a replica; see `MegatronFsdpModel`."""

    def __init__(self, options: MegatronFsdpOptions) -> None:
        options.require_legal()
        self._options = options

    def shard(self, model: nn.Module, plan: ModelPlan, mesh: Meshes, precision: Precision) -> MegatronFsdpModel:
        """Materialise and shard unit by unit; no more than one unit is whole at a time."""
        _require_one_stage(mesh)
        findings = try_out(mesh, precision, self._options, lay_out, version())
        sharded = lay_out(model, plan, mesh, precision, self._options)
        if findings.keeps_unsummed_gradients:
            logger.warning("%s", _two_peaks(sharded, precision))
        return sharded


def _two_peaks(sharded: MegatronFsdpModel, precision: Precision) -> str:
    """Say what kept gradients cost: the bytes of all unsummed ones, and of this rank's sums."""
    width = precision.dtype("reduce").itemsize
    whole = sum(torch.Size(piece.run.shape).numel() for piece in sharded.pieces.values()) * width
    own = sum(piece.gradient.numel() for piece in sharded.pieces.values()) * width
    return (
        f"sharding 'megatron_fsdp': {version()} keeps unsummed gradients of the whole model until a backward ends. "
        f"Gradients need {(whole + own) / 2**30:.2f} GiB on this rank in place of {own / 2**30:.2f} GiB and a few "
        "buckets. sharding.name=zero1 needs no more than this, sharding.name=fsdp2 less."
    )


def lay_out(
    model: nn.Module, plan: ModelPlan, mesh: Meshes, precision: Precision, options: MegatronFsdpOptions
) -> MegatronFsdpModel:
    """Wrap a model on the meta device, then fill the package's buffers with its values."""
    given = dict(model.named_parameters())
    saved = model.state_dict()
    buffers = tuple(name for name, _ in model.named_buffers() if name in saved)
    _hollow(model, plan, mesh.device, precision)
    for unit in outermost(plan):
        mark(model.get_submodule(unit.name))
    engine = Engine(Renamed(model, plan), mesh, precision, options)
    engine.use_raw()
    sharded = MegatronFsdpModel(model, plan, mesh, precision, engine)
    sharded.hold(_pieces(engine, plan, mesh), buffers)
    _fill(model, plan, mesh, given, engine, sharded)
    running.attach(engine, model, plan)
    return sharded


def _require_one_stage(mesh: Meshes) -> None:
    if mesh.size("pp") > 1:
        raise ContractError(
            f"sharding 'megatron_fsdp' runs without a pipeline, and parallel.pp is {mesh.size('pp')}. "
            "Use parallel.pp=1 or sharding.name=fsdp2."
        )


def _hollow(model: nn.Module, plan: ModelPlan, device: torch.device, precision: Precision) -> None:
    """Give every parameter its shape on the device, in the dtype it is gathered in, backed by one element."""
    for unit in plan.units:
        dtype = precision.dtype("high" if unit.high_precision else "compute")
        for name in unit.parameters:
            shape = model.get_parameter(name).shape
            if not shape:
                raise ContractError(f"Parameter {name!r} is a scalar, which cannot be cut. Give it the shape (1,).")
            empty = nn.Parameter(torch.zeros(1, dtype=dtype, device=device).expand(shape))
            # The package's first detector of experts; names.py serves the second one.
            empty.allreduce = plan.role(name) != "expert"  # type: ignore[attr-defined]
            _put(model, name, empty)


def _put(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(path), leaf, parameter)


def _pieces(engine: Engine, plan: ModelPlan, mesh: Meshes) -> dict[str, Piece]:
    """Say what this rank holds; collective.

    Raises:
        PluginError: the package took other parameters for experts than the plan does, or cut one into pieces that are
            not all of it.
    """
    held = engine.pieces()
    wrong = [name for name in plan.parameters if held[alias(plan, name)][2] != (plan.role(name) == "expert")]
    wrong += [
        name
        for name in plan.parameters
        if name not in wrong
        and getattr(engine.raw(alias(plan, name)), "allreduce", True) == (plan.role(name) == "expert")
    ]
    if wrong:
        raise PluginError(
            f"sharding 'megatron_fsdp': {version()} tells experts from other parameters otherwise than the model's "
            f"plan, for example {wrong[0]!r} ({plan.role(wrong[0])}). They would be sharded over the wrong ranks. "
            "Use sharding.name=fsdp2."
        )
    found: dict[str, Piece] = {}
    for axis, expert in (("dp_shard", False), ("edp_shard", True)):
        group = mesh.group(axis)
        assert group is not None
        names = [name for name in plan.parameters if (plan.role(name) == "expert") is expert]
        shapes = [tuple(engine.raw(alias(plan, name)).shape) for name in names]
        lengths = [held[alias(plan, name)][0].numel() for name in names]
        try:
            runs = in_rank_order(shapes, lengths, group)
        except ValueError as error:
            index, _, rest = str(error).partition(": ")
            raise PluginError(
                f"sharding 'megatron_fsdp': {version()} cut {names[int(index)]} wrongly: {rest}. "
                "Use sharding.name=fsdp2."
            ) from error
        for name, run in zip(names, runs, strict=True):
            found[name] = _piece(name, plan, mesh, held[alias(plan, name)], run)
    return {name: found[name] for unit in plan.units for name in unit.parameters}


def _piece(name: str, plan: ModelPlan, mesh: Meshes, held: tuple[torch.Tensor, torch.Tensor, bool], run: Run) -> Piece:
    wanted = plan.parameters[name].global_shape
    holders, rank = (mesh.size("ep"), mesh.rank("ep")) if plan.role(name) == "expert" else (1, 0)
    if (run.shape[0] * holders, *run.shape[1:]) != wanted:
        raise ContractError(
            f"{name}: the plan says the global shape is {wanted}, but the model has {run.shape} on each of "
            f"{holders} ranks. Correct the plan."
        )
    weight, gradient, _ = held
    return Piece(weight, gradient, run, wanted, rank * run.shape[0])


def _fill(
    model: nn.Module,
    plan: ModelPlan,
    mesh: Meshes,
    given: dict[str, nn.Parameter],
    engine: Engine,
    sharded: MegatronFsdpModel,
) -> None:
    """Materialise each unit in its own dtype, keep this rank's pieces, and put back what modules compute with."""
    for unit in plan.units:
        for name in unit.parameters:
            _put(model, name, given[name])
        plan.materialize(unit.name, mesh.device)
        for name in unit.parameters:
            piece = sharded.pieces[name]
            with torch.no_grad():
                piece.weight.copy_(piece.run.of(model.get_parameter(name)))
            _put(model, name, engine.raw(alias(plan, name)))
    engine.weights_changed()
