"""Names, runs of elements, units and the probe of the package, without ranks."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from moeframe_megatron_fsdp.engine import CLASSES, METHODS, import_package, require_known
from moeframe_megatron_fsdp.flat import Run, by_rows, in_rank_order
from moeframe_megatron_fsdp.names import Renamed, alias
from moeframe_megatron_fsdp.options import MegatronFsdpOptions
from moeframe_megatron_fsdp.sharded import Piece
from moeframe_megatron_fsdp.strategy import _two_peaks
from moeframe_megatron_fsdp.tallies import Tallies, plan_of
from moeframe_megatron_fsdp.trial import Findings, try_out
from moeframe_megatron_fsdp.units import Marked, mark, outermost
from torch import nn

from moeframe.errors import PluginError
from moeframe.mesh.build import build_meshes
from moeframe.mesh.degrees import Degrees
from moeframe.protocols.precision import Precision
from moeframe.testing.sharding_toy import Placement, Toy
from moeframe.testing.sharding_toy import plan_of as plan_of_toy


class Group:
    """Stands for a process group."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


def toy() -> tuple[Toy, object]:
    placement = Placement(num_experts=2)
    with torch.device("meta"):
        model = Toy(placement)
    return model, plan_of_toy(model, placement, torch.float32)


def test_only_routed_experts_have_the_name_that_the_package_looks_for() -> None:
    model, plan = toy()
    assert any(".experts." in name and plan.role(name) != "expert" for name in plan.parameters)
    for name in plan.parameters:
        assert (".experts." in alias(plan, name)) is (plan.role(name) == "expert")
    renamed = dict(Renamed(model, plan).named_parameters())
    assert list(renamed.values()) == list(model.parameters())
    assert renamed["others.blocks/0/experts/shared/weight"] is model.get_parameter("blocks.0.experts.shared.weight")
    assert renamed["routed.experts.blocks/0/experts/routed/up"] is model.get_parameter("blocks.0.experts.routed.up")


def test_a_renamed_parameter_is_replaced_in_the_model_as_the_package_does_it() -> None:
    model, plan = toy()
    for name in ("blocks.0.experts.shared.weight", "blocks.1.experts.routed.up"):
        *path, leaf = alias(plan, name).split(".")
        parent = Renamed(model, plan)
        for part in path:
            parent = getattr(parent, part)
        new = nn.Parameter(torch.zeros(1))
        setattr(parent, leaf, new)
        assert model.get_parameter(name) is new


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(4, 3), (1, 2, 2), (7,)])
def test_runs_by_rows_are_torchs_chunks(shape: tuple[int, ...], ranks: int) -> None:
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    chunks = [*whole.chunk(ranks), *[whole[:0]] * ranks][:ranks]
    for rank, chunk in enumerate(chunks):
        run = by_rows(shape, Group(rank, ranks))
        assert torch.equal(run.of(whole), chunk.flatten())


def test_a_run_of_all_elements_is_copied() -> None:
    run = Run((2, 2), 0, 4, Group(0, 1))
    piece = torch.arange(4.0)
    whole = run.whole(piece)
    piece.zero_()
    assert whole.tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_pieces_that_are_not_all_of_a_tensor_are_an_error_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"^1: its pieces have 3 elements, the tensor 4$"):
        in_rank_order([(3,), (2, 2)], [3, 3], Group(0, 1))


def test_kept_gradients_are_told_with_and_without_them() -> None:
    gradient = torch.zeros(1).expand(2**26)
    piece = Piece(gradient, gradient, Run((2**27,), 0, 2**26, Group(0, 2)), (2**27,), 0)
    told = _two_peaks(SimpleNamespace(pieces={"weight": piece}), Precision.of("bfloat16"))
    assert "0.75 GiB on this rank in place of 0.25 GiB" in told
    assert "sharding.name=zero1" in told


def test_units_inside_units_are_no_units_of_the_package() -> None:
    _, plan = toy()
    assert [unit.name for unit in outermost(plan)] == [
        "embedding",
        "blocks.0.attend",
        "blocks.0.experts",
        "blocks.1.attend",
        "blocks.1.experts",
        "head",
    ]


def test_a_mark_is_on_one_module_and_not_on_others_of_its_class() -> None:
    marked, other = nn.Linear(2, 2), nn.Linear(2, 2)
    for _ in range(2):
        mark(marked)
    assert isinstance(marked, Marked)
    assert isinstance(marked, nn.Linear)
    assert not isinstance(other, Marked)
    assert type(marked).__name__ == "Linear"
    assert torch.equal(marked(torch.ones(1, 2)), nn.functional.linear(torch.ones(1, 2), marked.weight, marked.bias))


def test_a_package_without_the_names_that_are_called_is_refused() -> None:
    package = SimpleNamespace(**{name: SimpleNamespace() for name in CLASSES})
    package.MegatronFSDP = SimpleNamespace(**dict.fromkeys(METHODS[1:]))
    del package.MixedPrecisionPolicy
    with pytest.raises(PluginError, match=rf"has no MixedPrecisionPolicy, MegatronFSDP\.{METHODS[0]}, .*0\.6\.1"):
        require_known(package)


def test_a_package_that_cannot_be_imported_says_why_and_what_to_do(tmp_path, monkeypatch) -> None:
    package = tmp_path / "megatron_fsdp"
    package.mkdir()
    (package / "__init__.py").write_text("import no_such_einops\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "megatron_fsdp", raising=False)
    with pytest.raises(PluginError, match=r"no_such_einops'\. Install .*einops.*sharding\.name=fsdp2"):
        import_package()


class Laid:
    """A sharded model of one process, whose first AdamW step is its `first_step`-th."""

    def __init__(self, model: Tallies, plan, mesh, first_step: int = 1) -> None:
        for unit in plan.units:
            plan.materialize(unit.name, mesh.device)
        self.model, self.first_step = model, first_step

    def finish_gradients(self) -> None:
        pass

    def full_gradients(self):
        return {name: parameter.grad.clone() for name, parameter in self.model.named_parameters()}

    def full_parameters(self):
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def optimizer(self, settings):
        optimizer = torch.optim.AdamW(
            self.model.parameters(), settings.lr, settings.betas, settings.eps, settings.weight_decay
        )
        for parameter in self.model.parameters():
            held = {"step": torch.tensor(self.first_step - 1.0)}
            held |= {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
            optimizer.state[parameter] = held
        return optimizer


def tried(first_step: int) -> Findings:
    mesh = build_meshes(Degrees(world=1, pp=1, dp_replicate=1, ep=1), torch.device("cpu"))

    def lay_out(model, plan, mesh, precision, options):
        return Laid(model, plan, mesh, first_step)

    return try_out(mesh, Precision.of("float32"), MegatronFsdpOptions(), lay_out, "megatron-fsdp 9.9")


def test_a_package_that_does_right_passes_whatever_its_version() -> None:
    assert tried(first_step=1) == Findings(keeps_unsummed_gradients=False)


def test_a_first_step_that_is_adams_second_is_refused() -> None:
    with pytest.raises(PluginError, match=r"first AdamW step with megatron-fsdp 9\.9 .*step counter"):
        tried(first_step=2)


def test_the_small_model_has_every_role() -> None:
    mesh = build_meshes(Degrees(world=1, pp=1, dp_replicate=1, ep=1), torch.device("cpu"))
    plan = plan_of(Tallies(), mesh, Precision.of("float32"))
    assert {parameter.role for parameter in plan.parameters.values()} == {"dense", "router", "expert"}
