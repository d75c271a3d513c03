"""Everything that touches the package megatron-fsdp: what is asked of it, how it is set up, and by which names.

Its entry points are experimental and some names used here are private, so all of them are here, and `require_known`
looks for them before anything is laid out. Process groups of the package: its `shard` dimension is moeframe's
`dp_shard` for all parameters but experts, and `edp_shard` for these. Replicas (`dp_replicate`) are not told to it:
their gradients are summed here, once a step, when all micro-batches are done.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from moeframe.errors import PluginError
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import Meshes
from moeframe_megatron_fsdp.options import MegatronFsdpOptions
from moeframe_megatron_fsdp.units import Marked

__all__ = ["Engine", "import_package", "require_known", "version"]

STRATEGIES: Final = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}

CLASSES: Final = ("DistributedDataParallelConfig", "FSDPDistributedIndex", "MegatronFSDP", "MixedPrecisionPolicy")
METHODS: Final = (
    "_replace_param_with_raw_if_needed",
    "all_gather_and_wait_parameters_ready",
    "install_optimized_model_weights",
    "synchronize_gradient_reduce",
    "synchronize_param_gather",
    "zero_grad_buffer",
)
ATTRIBUTES: Final = (
    "_root_pre_backward_hook_issued",
    "all_gather_pipeline",
    "param_and_grad_buffer",
    "post_backward",
    "pre_backward",
    "raw_param",
    "suggested_AG_prefetch_size",
    "suggested_RS_queue_capacity",
)
"""Of a wrapped model, besides its methods."""


def version() -> str:
    """Return the installed version of the package, in words."""
    try:
        return f"megatron-fsdp {importlib.metadata.version('megatron-fsdp')}"
    except importlib.metadata.PackageNotFoundError:
        return "megatron_fsdp of no installed distribution"


def import_package() -> Any:
    """Import megatron_fsdp.

    Raises:
        PluginError: importing failed, with the cause and what to do.
    """
    with warnings.catch_warnings():
        # About parts of the package that quantize weights, which are not used here.
        warnings.filterwarnings("ignore", message="Transformer Engine and Apex are not installed", category=UserWarning)
        try:
            return importlib.import_module("megatron_fsdp")
        except Exception as error:
            raise PluginError(
                f"sharding 'megatron_fsdp': {version()} cannot be imported beside torch {torch.__version__}: "
                f"{type(error).__name__}: {str(error).rstrip('.')}. Install `moeframe[megatron-fsdp]` again, which "
                "brings what it needs (einops, packaging); where the cause names transformer_engine or megatron.core, "
                "which it imports if they are there, mend or uninstall that one. Or use sharding.name=fsdp2."
            ) from error


def require_known(package: Any) -> None:
    """Require the classes and methods that this plugin calls.

    Raises:
        PluginError: with the names that are missing and the version.
    """
    missing = [name for name in CLASSES if not hasattr(package, name)]
    wrapper = getattr(package, "MegatronFSDP", None)
    missing += [f"MegatronFSDP.{name}" for name in METHODS if wrapper is not None and not hasattr(wrapper, name)]
    if missing:
        raise _unknown(missing)


def _unknown(missing: Iterable[str]) -> PluginError:
    return PluginError(
        f"sharding 'megatron_fsdp': {version()} has no {', '.join(missing)}, which this plugin calls. "
        "Install megatron-fsdp 0.6.1 (`pip install 'moeframe[megatron-fsdp]'`), or use sharding.name=fsdp2."
    )


class Engine:
    """A model wrapped by the package.

    Args:
        model: whose parameters the package may see, on the device and without values; marked modules are its units.
        mesh: of the job.
        precision: of the job.
        options: of the plugin.
    """

    def __init__(self, model: nn.Module, mesh: Meshes, precision: Precision, options: MegatronFsdpOptions) -> None:
        package = import_package()
        require_known(package)
        self.zero: int = options.zero
        alone = mesh.group("pp")
        assert alone is not None
        config = package.DistributedDataParallelConfig(
            data_parallel_sharding_strategy=STRATEGIES[options.zero],
            # ZeRO-1 sums once a step, in `finish`; the others after each backward, beside it.
            overlap_grad_reduce=options.zero > 1,
            # Weights are gathered by the module that is about to run, after a step as well.
            overlap_param_gather=True,
            bucket_size=options.bucket_elements,
            # User buffers make multicast objects.
            nccl_ub=False,
        )
        index = package.FSDPDistributedIndex(
            device_mesh=_two_dimensions(mesh.group("dp_shard"), alone, mesh.device),
            dp_shard_dim="shard",
            tp_dim="tensor",
            expt_device_mesh=_two_dimensions(mesh.group("edp_shard"), alone, mesh.device),
        )
        one_dtype = precision.parameters == precision.compute == precision.high
        self.wrapper: Any = package.MegatronFSDP(
            module=model,
            dist_index=index,
            ddp_config=config,
            mixed_precision_policy=package.MixedPrecisionPolicy(
                # Weights of the computing dtype are the optimizer's too, when that is the same.
                main_params_dtype=None if one_dtype else precision.dtype("parameters"),
                main_grads_dtype=precision.dtype("reduce"),
            ),
            # The package frees a unit's weights after its forward, also those that ZeRO-1 and 2 keep whole: no units.
            fsdp_unit_modules=[Marked] if options.zero == 3 else [],
            # The loss is divided by all tokens already: plain sums, no averages.
            calculate_per_token_loss=True,
            sync_model_each_microbatch=False,
        )
        missing = [name for name in ATTRIBUTES if not hasattr(self.wrapper, name)]
        if missing:
            raise _unknown(f"MegatronFSDP().{name}" for name in missing)
        self._replicas = mesh.group("dp_replicate")
        self._limit_buffers()

    def _limit_buffers(self) -> None:
        """Keep no more than the largest bucket gathered ahead, and no more unsummed; 10^9 elements by default.

        What one rank holds whole is gathered and summed in place, and takes nothing.
        """
        weights = [group.model_weight_buffer for group in self.groups]
        gradients = [group.main_grad_buffer for group in self.groups]
        self.wrapper.suggested_AG_prefetch_size = _largest(weights if self.zero < 3 else _cut(weights))
        self.wrapper.suggested_RS_queue_capacity = _largest(_cut(gradients))

    @property
    def groups(self) -> list[Any]:
        """The package's groups of parameters; each has its buffers."""
        return list(self.wrapper.param_and_grad_buffer.parameter_groups)

    def raw(self, alias: str) -> nn.Parameter:
        """Return the parameter that modules compute with, by the name that the package knows."""
        found: nn.Parameter = self.wrapper.raw_param[alias]
        return found

    def pieces(self) -> dict[str, tuple[torch.Tensor, torch.Tensor, bool]]:
        """Return this rank's flat weights and gradients, views of the buffers, and whether they lie as experts do.

        By the package's names. The weights are those that an optimizer updates.

        Raises:
            PluginError: a parameter lies in no buffer, or in two.
        """
        names = {id(parameter): name for name, parameter in self.wrapper.raw_param.items()}
        found: dict[str, tuple[torch.Tensor, torch.Tensor, bool]] = {}
        twice: list[str] = []
        for group in self.groups:
            weights = group.main_weight_buffer or group.model_weight_buffer
            for item, parameter in enumerate(group.params):
                name = names[id(parameter)]
                twice += [name] if name in found else []
                own = [buffer.get_item(item, only_shard=True) for buffer in (weights, group.main_grad_buffer)]
                found[name] = (own[0], own[1], bool(group.is_expert_param))
        lost = names_without(self.wrapper.raw_param, found)
        if lost or twice:
            raise PluginError(
                f"sharding 'megatron_fsdp': {version()} laid out these parameters in no buffer: {lost or 'none'}; and "
                f"in two: {twice or 'none'}. Use sharding.name=fsdp2."
            )
        return found

    def use_raw(self) -> None:
        """Let modules have the parameters they compute with, not the optimizer's."""
        self.wrapper._replace_param_with_raw_if_needed()  # noqa: SLF001 - the public way runs the whole model

    def gather(self, parameters: list[nn.Parameter], *, backward: bool = False) -> None:
        """Make parameters whole on this rank; nothing to do for those that are."""
        self.wrapper.all_gather_and_wait_parameters_ready(parameters, prefetch=False, bwd=backward)

    def begin_backward(self) -> None:
        """Note that a backward has begun, unless that is known; its end is noted when autograd is done."""
        if self.wrapper._root_pre_backward_hook_issued:  # noqa: SLF001 - there is no public flag
            return
        self.wrapper.pre_backward()
        engine = torch.autograd.Variable._execution_engine  # noqa: SLF001 - as fully_shard does
        engine.queue_callback(self.wrapper.post_backward)

    def finish(self) -> None:
        """Bring gradients to their sums over all ranks and forget gathered weights."""
        self.wrapper.synchronize_gradient_reduce()
        if self._replicas is not None and self._replicas.size() > 1:
            for group in self.groups:
                dist.all_reduce(group.main_grad_buffer.get_shard_from_local_buffer(), group=self._replicas)
        self.forget_gathered()

    def forget_gathered(self) -> None:
        """Have weights gathered anew before they are used again."""
        pipeline = self.wrapper.all_gather_pipeline
        for bucket, backward in list(pipeline.param_gather_event_map):
            pipeline.wait_bucket_ready(bucket, backward)
        self.wrapper.synchronize_param_gather()
        self.use_raw()
        self.wrapper.microbatch_count = 0

    def weights_changed(self) -> None:
        """Bring the optimizer's weights to the buffers that modules compute with."""
        self.wrapper.install_optimized_model_weights()

    def clear_gradients(self) -> None:
        """Set the gradient buffers to zero."""
        self.wrapper.zero_grad_buffer()


def _cut(buffers: Iterable[Any]) -> list[Any]:
    return [buffer for buffer in buffers if buffer.is_data_distributed]


def _largest(buffers: Iterable[Any]) -> int:
    return max((buffer.bucket_index.size for buffer in buffers), default=0)


def names_without(wanted: Iterable[str], found: Iterable[str]) -> list[str]:
    """Return the names that are not found, in order."""
    return sorted(set(wanted) - set(found))


def _two_dimensions(shards: ProcessGroup | None, alone: ProcessGroup, device: torch.device) -> DeviceMesh:
    """Return a mesh over the shards, with the dimension of tensor parallelism that the package wants; its size is 1."""
    assert shards is not None
    ranks = torch.tensor(dist.get_process_group_ranks(shards)).view(-1, 1)
    return DeviceMesh.from_group([shards, alone], device.type, mesh=ranks, mesh_dim_names=("shard", "tensor"))
