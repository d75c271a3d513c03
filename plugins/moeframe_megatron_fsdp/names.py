"""Parameters under names by which Megatron-FSDP tells experts from the rest.

The package has two detectors: one reads the attribute `allreduce` of a parameter, which is False for experts, the other
looks for ".experts." in its name. A model is free to call its modules what it likes: here a shared expert is called
`blocks.3.experts.shared.gate.weight`, and is no routed expert. So the package sees the model through this module, which
renames parameters by their role in the plan and leaves the model alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from moeframe.protocols.sharding import ModelPlan

__all__ = ["Renamed", "alias"]

MARK = ".experts."
"""What the package looks for in a name."""


def alias(plan: ModelPlan, name: str) -> str:
    """Return the name under which the package sees a parameter."""
    flat = name.replace(".", "/")
    return f"routed{MARK}{flat}" if plan.role(name) == "expert" else f"others.{flat}"


class _Place:
    """Where `setattr` with a flattened name replaces a parameter of the model."""

    def __init__(self, model: nn.Module) -> None:
        self.__dict__["model"] = model

    def __setattr__(self, flat: str, parameter: nn.Parameter) -> None:
        path, _, leaf = flat.replace("/", ".").rpartition(".")
        setattr(self.__dict__["model"].get_submodule(path), leaf, parameter)


class _Routed:
    """The first half of an expert's name."""

    def __init__(self, place: _Place) -> None:
        self.experts = place


class Renamed(nn.Module):
    """A model whose parameters have other names; its modules are the model's own."""

    def __init__(self, model: nn.Module, plan: ModelPlan) -> None:
        """Look through to `model`, whose parameters the plan lists."""
        super().__init__()
        self.model = model
        self._aliases = {name: alias(plan, name) for name in plan.parameters}
        self.others = _Place(model)
        self.routed = _Routed(self.others)

    def named_parameters(
        self,
        prefix: str = "",
        recurse: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        remove_duplicate: bool = True,  # noqa: FBT001, FBT002
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the model's parameters under the new names; this module has none of its own."""
        if not recurse:
            return
        for name, parameter in self.model.named_parameters(remove_duplicate=remove_duplicate):
            yield f"{prefix}.{self._aliases[name]}" if prefix else self._aliases[name], parameter
