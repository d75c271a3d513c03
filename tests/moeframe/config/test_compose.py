from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace

import pytest

from moeframe.config.compose import Composition, compose
from moeframe.config.load import LoadedRecipe, read_recipe
from moeframe.config.schema import LearningRateConfig, Recipe
from moeframe.config.typed import hints_of
from moeframe.errors import PluginError, PluginLoadError, Problem, RecipeError, TopologyError
from moeframe.hooks import (
    ComputeOffer,
    DatasetOffer,
    DispatcherOffer,
    ModuleNeed,
    Needs,
    ScheduleOffer,
    ShardingOffer,
    hookimpl,
)
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.protocols.compute import ComputeTraits
from moeframe.protocols.data import DatasetTraits
from moeframe.protocols.dispatcher import DispatcherTraits
from moeframe.protocols.precision import Precision
from moeframe.protocols.schedule import ScheduleTraits
from moeframe.protocols.sharding import ShardingTraits

DISPATCHER = DispatcherTraits(
    fused=False, host_syncs_per_layer=0, keeps_dispatch_input=False, keeps_expert_input=False, deterministic=True
)
SCHEDULE = ScheduleTraits(splits_backward=False, pipelines=False)


@dataclass(frozen=True, kw_only=True)
class Sms:
    num_sms: int = 20


class Parts:
    """A plugin that offers one plain backend of each kind, and whatever a test adds."""

    def __init__(self, *extra, check=lambda recipe: [], **traits) -> None:
        common = {"summary": "s", "build": lambda *parts: parts}
        dispatcher = replace(DISPATCHER, **traits.pop("dispatcher", {}))
        sharding = ShardingTraits(**({"parameters_stay_whole": True} | traits.pop("sharding", {})))
        schedule = replace(SCHEDULE, **traits.pop("schedule", {}))
        compute = ComputeTraits(
            **({"saves_expert_input": True, "splits_expert_backward": False} | traits.pop("compute", {}))
        )
        data = DatasetTraits(**({"vocabulary": 256} | traits.pop("data", {})))
        legal = traits.pop("legal", lambda options, pp, n: None)
        needs = Needs(device_kinds=traits.pop("kinds", ("cpu", "cuda")))
        assert not traits
        self.check = check
        self.offers = (
            DispatcherOffer(name="plain", traits=lambda o, p: dispatcher, options=Sms, needs=needs, **common),
            ShardingOffer(name="whole", traits=lambda o, p: sharding, **common),
            ScheduleOffer(name="onebyone", traits=lambda o, p: schedule, legal_micro_batches=legal, **common),
            ComputeOffer(name="simple", traits=lambda o, p: compute, **common),
            DatasetOffer(name="bytes", traits=lambda o, p: data, **common),
            *extra,
        )

    def of(self, kind):
        return [offer for offer in self.offers if offer.kind == kind]

    @hookimpl
    def moeframe_offer_dispatchers(self):
        return self.of("dispatcher")

    @hookimpl
    def moeframe_offer_shardings(self):
        return self.of("sharding")

    @hookimpl
    def moeframe_offer_schedules(self):
        return self.of("schedule")

    @hookimpl
    def moeframe_offer_computes(self):
        return self.of("compute")

    @hookimpl
    def moeframe_offer_datasets(self):
        return self.of("data")

    @hookimpl
    def moeframe_check_recipe(self, recipe):
        return self.check(recipe)


def catalog(*plugins) -> Catalog:
    return Catalog(build_plugin_manager(plugins or [Parts()], entry_points=False, environment={}))


def refused(loaded: LoadedRecipe, *plugins, **where) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        compose(loaded, catalog(*plugins), **where)
    return [str(problem) for problem in caught.value.problems]


def test_a_recipe_whose_parts_fit_becomes_a_composition(base) -> None:
    loaded = base(
        "launch.nproc_per_node=4", "parallel.ep=2", "dispatcher.options.num_sms=8", "train.micro_batch_size=1"
    )
    composition = compose(loaded, catalog())
    assert isinstance(composition, Composition)
    assert composition.recipe is loaded.recipe
    assert composition.dispatcher.options == Sms(num_sms=8)
    assert composition.dispatcher.traits is not None
    assert composition.precision == Precision.of("float32")
    degrees = composition.degrees
    assert (degrees.world, degrees.dp_shard, degrees.ep, degrees.edp) == (4, 4, 2, 2)
    assert (composition.num_micro_batches, composition.tokens_per_step) == (2, 256)
    assert composition.dispatcher.build("context") == (Sms(num_sms=8), "context")
    assert composition.sharding.offer.name == "whole"
    assert composition.data.traits.vocabulary == 256


def test_every_problem_of_values_rules_and_backends_is_reported_at_once(recipes) -> None:
    text = """\
dispatcher: {name: plane, options: {num_sms: x}}
sharding: {name: whole, options: {x: 1}}
train: {steps: many, micro_batch_size: 3, eval_sequences: 3}
model: {vocab_size: 100}
launch: {nproc_per_node: two}
"""
    loaded = read_recipe(recipes.over_base(text))
    assert refused(loaded) == [
        "r.yaml:2:20: dispatcher.name: 'plane': no installed plugin offers it. Offered: plain. Did you mean 'plain'?",
        "r.yaml:3:35: sharding.options.x: unknown key 'x'. There is nothing to set in the options of sharding 'whole'.",
        "r.yaml:4:16: train.steps: given 'many'; must be a whole number. Write a whole number in "
        "decimal digits, such as "
        "200.",
        "r.yaml:4:59: train.eval_sequences: given 3, but it is ignored while train.eval_every is 0. Remove it, or set "
        "train.eval_every to the number of steps between validations.",
        "r.yaml:5:21: model.vocab_size: given 100; data set 'bytes' has 256 distinct tokens. Use "
        "model.vocab_size=256 or more.",
        "r.yaml:6:26: launch.nproc_per_node: given 'two'; must be a whole number. Write a whole "
        "number in decimal digits, "
        "such as 200.",
    ]


@pytest.mark.parametrize(
    ("overrides", "parts", "line"),
    [
        (
            ["launch.nproc_per_node=2", "parallel.ep=2"],
            {"dispatcher": {"max_group": 1}},
            "parallel.ep: given 2; dispatcher 'plain' works between at most 1 rank. Use parallel.ep=1.",
        ),
        (
            [],
            {"dispatcher": {"min_group": 2}},
            "parallel.ep: given 1; dispatcher 'plain' works between 2 ranks or more.",
        ),
        (
            ["launch.nproc_per_node=4", "parallel.ep=1"],
            {"dispatcher": {"group_sizes": (2, 4, 8)}},
            "parallel.ep: given 1; dispatcher 'plain' works between 2, 4 or 8 ranks only. Use parallel.ep=2 or 4.",
        ),
        (
            ["launch.nproc_per_node=2", "parallel.ep=2"],
            {"dispatcher": {"group_sizes": (4, 8)}},
            "parallel.ep: given 2; dispatcher 'plain' works between 4 or 8 ranks only. Use launch.nproc_per_node=4 "
            "parallel.ep=4.",
        ),
        (
            ["launch.nproc_per_node=2", "parallel.ep=2"],
            {"dispatcher": {"max_local_experts": 3}},
            "parallel.ep: given 2, which leaves 4 of 8 experts on each rank; dispatcher 'plain' takes at most 3. Use "
            "launch.nproc_per_node=4 parallel.ep=4.",
        ),
        (
            [],
            {"dispatcher": {"experts_multiple": 3}},
            "model.n_routed_experts: given 8; dispatcher 'plain' needs a multiple of 3. Use model.n_routed_experts=9.",
        ),
        (
            [],
            {"dispatcher": {"min_hidden": 17}},
            "model.hidden_size: given 16; dispatcher 'plain' sends rows of at least 17. Use model.hidden_size=17.",
        ),
        (
            [],
            {"dispatcher": {"max_hidden": 15}},
            "model.hidden_size: given 16; dispatcher 'plain' sends rows of at most 15. Use model.hidden_size=15.",
        ),
        (
            ["model.num_experts_per_tok=4"],
            {"dispatcher": {"max_topk": 3}},
            "model.num_experts_per_tok: given 4; dispatcher 'plain' sends a token to at most 3 experts.",
        ),
        (
            [],
            {"dispatcher": {"hidden_multiple": 512}},
            "model.hidden_size: given 16; dispatcher 'plain' needs a multiple of 512. Use model.hidden_size=512.",
        ),
        (
            [],
            {"dispatcher": {"token_multiple": 128}},
            "train.micro_batch_size: given 2, which is 64 tokens of a rank at train.seq_len=32; dispatcher 'plain' "
            "needs a multiple of 128. Use train.micro_batch_size=4 or 8; or train.seq_len=64.",
        ),
        (
            ["model.capacity_factor=1.5"],
            {"dispatcher": {"supports_capacity_drop": False}},
            "model.capacity_factor: given 1.5; dispatcher 'plain' drops no tokens. Use model.capacity_factor=null.",
        ),
        (
            ["dispatcher.use_flex_dispatcher=true"],
            {},
            "dispatcher.use_flex_dispatcher: given true, which demands a dispatcher that is fused and selects "
            "none itself; 'plain' is not a fused one",
        ),
        (
            ["dispatcher.use_flex_dispatcher=false"],
            {"dispatcher": {"fused": True}},
            "dispatcher.use_flex_dispatcher: given false, which demands a dispatcher that is not fused and "
            "selects none itself; 'plain' is a fused one. Use dispatcher.use_flex_dispatcher=null,",
        ),
        (
            ["train.precision=float64"],
            {"dispatcher": {"wire_dtypes": ("bfloat16", "float32")}},
            "train.precision: given float64; dispatcher 'plain' sends bfloat16, float32 only.",
        ),
        (
            ["train.precision=bfloat16"],
            {"compute": {"dtypes": ("float32",)}},
            "train.precision: given bfloat16; compute 'simple' computes in float32 only.",
        ),
        (
            ["launch.nproc_per_node=2", "parallel.pp=2"],
            {},
            "parallel.pp: given 2; schedule 'onebyone' runs one stage, without a pipeline.",
        ),
        (
            ["launch.nproc_per_node=2", "parallel.pp=2"],
            {"schedule": {"pipelines": True, "stages_per_rank": 2}},
            "parallel.pp: given 2; with 2 stages a rank that makes 4 stages, and the model has 2 layers "
            "(model.num_hidden_layers). Use model.num_hidden_layers=4 or more; or parallel.pp=1.",
        ),
        (
            [],
            {"legal": lambda options, pp, n: f"{n} is odd one out on {pp}; legal: 8, 16."},
            "train.micro_batch_size: given 2, which makes 4 micro-batches a step "
            "(train.global_batch_size 8 / 1 data rank / 2); schedule 'onebyone': 4 is odd one out on 1; legal: 8, 16.",
        ),
        (
            [],
            {"schedule": {"splits_backward": True}, "sharding": {"parameters_stay_whole": False}},
            "sharding.name: 'whole' frees gathered parameters after the forward, but schedule "
            "'onebyone' computes weight",
        ),
        (
            [],
            {"sharding": {"min_data_ranks": 2}},
            "sharding.name: 'whole' needs 2 data ranks or more; the recipe has 1",
        ),
        (
            ["launch.nproc_per_node=2", "parallel.dp_replicate=2"],
            {"sharding": {"supports_dp_replicate": False}},
            "parallel.dp_replicate: given 2; sharding 'whole' knows no replicas of its shards.",
        ),
        (
            [],
            {"sharding": {"needs_dp_replicate": True}},
            "parallel.dp_replicate: given 1; sharding 'whole' shards within replicas and needs 2 or more of "
            "them, each of parallel.ep=1 data ranks or a multiple (now: 1 in all). Use launch.nproc_per_node=2 "
            "parallel.dp_replicate=2.",
        ),
        (
            ["launch.nproc_per_node=8", "parallel.ep=2", "train.micro_batch_size=1"],
            {"sharding": {"needs_dp_replicate": True}},
            "parallel.dp_replicate: given 1; sharding 'whole' shards within replicas and needs 2 or more of "
            "them, each of parallel.ep=2 data ranks or a multiple (now: 8 in all). Use parallel.dp_replicate=2 or 4.",
        ),
        (
            ["model.vocab_size=100"],
            {"data": {"vocabulary": 102400}},
            "model.vocab_size: given 100; data set 'bytes' has 102400 distinct tokens. Use "
            "model.vocab_size=102400 or more.",
        ),
        (
            ["launch.device=cuda"],
            {"kinds": ("cpu",)},
            "launch.device: given cuda; dispatcher 'plain' runs on cpu only.",
        ),
        (
            ["launch.device=cpu"],
            {"sharding": {"device_kinds": ("cuda",)}},
            "launch.device: given cpu; sharding 'whole' runs on cuda only.",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused_by_their_traits(base, overrides, parts, line) -> None:
    (printed,) = refused(base(*overrides), Parts(**parts))
    place, _, rest = printed.partition(": ")
    assert rest.startswith(line)
    assert place.startswith("base.yaml") or place in overrides


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["dispatcher.use_flex_dispatcher=true"], {"dispatcher": {"fused": True}}),
        (["dispatcher.use_flex_dispatcher=false"], {}),
        (["launch.nproc_per_node=2", "parallel.pp=2"], {"schedule": {"pipelines": True}}),
        (["launch.nproc_per_node=2", "parallel.dp_replicate=2"], {"sharding": {"needs_dp_replicate": True}}),
        (["model.vocab_size=300"], {}),
        (["model.capacity_factor=1.5"], {}),
        ([], {"data": {"vocabulary": None}}),
        ([], {"dispatcher": {"token_multiple": 64, "hidden_multiple": 8, "max_topk": 2, "needs_equal_tokens": True}}),
    ],
)
def test_parts_that_fit_are_taken(base, overrides, parts) -> None:
    assert compose(base(*overrides), catalog(Parts(**parts))).recipe


def test_traits_see_the_options_and_the_precision(base) -> None:
    def traits(options, precision):
        return replace(DISPATCHER, hidden_multiple=options.num_sms, wire_dtypes=(precision.compute,))

    offer = DispatcherOffer(name="odd", summary="s", build=print, options=Sms, traits=traits)
    (line,) = refused(base("dispatcher.name=odd", "dispatcher.options.num_sms=7"), Parts(offer))
    assert "needs a multiple of 7" in line


def test_c134_an_unusable_backend_names_the_reason_the_line_and_what_is_usable(recipes) -> None:
    need = ModuleNeed(name="no_such_module_anywhere", install="Install it with `pip install it`.")
    offer = DispatcherOffer(
        name="deep", summary="s", build=print, traits=lambda o, p: DISPATCHER, needs=Needs(modules=(need,))
    )
    loaded = recipes.load("dispatcher: {name: deep}\ntrain: {seq_len: 100}")
    assert refused(loaded, Parts(offer)) == [
        "r.yaml:2:20: dispatcher.name: 'deep' cannot be used here: the module "
        "no_such_module_anywhere is not installed. "
        "Install it with `pip install it`. Nothing is chosen in its place. Use dispatcher.name=plain; or "
        "on_unavailable.dispatcher=plain, which is used wherever 'deep' cannot be. `moeframe plan` checks this recipe "
        "for a machine that has what is missing.",
        "r.yaml:3:18: train.seq_len: given 100; must not exceed model.max_position_embeddings = 64. Use 64 or less, or "
        "raise model.max_position_embeddings.",
    ]


def test_a_backend_for_another_device_is_refused_once_the_device_is_known(base) -> None:
    assert compose(base(), catalog(Parts(kinds=("cpu",))), device_kind="cpu")
    (line,) = refused(base("launch.device=auto"), Parts(sharding={"device_kinds": ("cuda",)}), device_kind="cpu")
    assert "sharding.name: 'whole' runs on cuda only, and this job on cpu." in line


def test_a_name_that_two_plugins_offer_is_a_problem_with_the_recipe_line(recipes) -> None:
    class Twin:
        @hookimpl
        def moeframe_offer_dispatchers(self):
            return [DispatcherOffer(name="plain", summary="s", build=print, traits=lambda o, p: DISPATCHER)]

    (line,) = refused(recipes.load("train: {steps: 3}"), Parts(), Twin())
    assert line.startswith("base.yaml:20:20: dispatcher.name: 'plain': more than one plugin offers it:")


def test_the_cause_of_a_broken_plugin_is_kept(base, tmp_path, monkeypatch) -> None:
    (tmp_path / "bad_ring.py").write_text("import nothing_of_that_name\nRING = 'ring'\n")
    dist = tmp_path / "moeframe_bad-1.0.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: moeframe-bad\nVersion: 1.0\n")
    (dist / "entry_points.txt").write_text("[moeframe]\nring = bad_ring\n")
    monkeypatch.syspath_prepend(tmp_path)
    host = build_plugin_manager([Parts()], environment={})
    with pytest.raises(RecipeError, match="ring") as caught:
        compose(base("dispatcher.name=ring"), Catalog(host))
    assert isinstance(caught.value.__cause__, PluginLoadError)
    assert isinstance(caught.value.__cause__.__cause__, ModuleNotFoundError)


def test_a_plugin_may_refuse_a_recipe(recipes) -> None:
    def check(recipe):
        return [Problem(path="train.seed", message=f"given {recipe.train.seed}; unlucky.", fix="Use another.")]

    (line,) = refused(recipes.load("train: {seed: 13}"), Parts(check=check))
    assert line == "r.yaml:2:15: train.seed: given 13; unlucky. Use another."


def test_a_check_that_returns_anything_but_problems_is_named(base) -> None:
    with pytest.raises(PluginError, match=r"plugin 'Parts' returned 'no' from moeframe_check_recipe"):
        compose(base(), catalog(Parts(check=lambda recipe: ["no"])))


def test_a_check_that_raises_names_its_plugin_unless_the_recipe_is_wrong_anyway(base) -> None:
    with pytest.raises(PluginError, match=r"plugin 'Parts'.* failed in moeframe_check_recipe: ZeroDivisionError"):
        compose(base(), catalog(Parts(check=lambda recipe: 1 / 0)))
    assert len(refused(base("train.seq_len=100"), Parts(check=lambda recipe: 1 / 0))) == 1


def test_c137_another_number_of_processes_shows_the_factorisation(base) -> None:
    loaded = base("launch.nproc_per_node=8", "parallel.dp_replicate=2", "parallel.ep=2", "train.micro_batch_size=1")
    assert compose(loaded, catalog(), world_size=8)
    with pytest.raises(TopologyError) as caught:
        compose(loaded, catalog(), world_size=6)
    assert str(caught.value) == (
        "6 process(es) were started, and the recipe wants 8 (launch.nnodes 1 x launch.nproc_per_node 8) = pp 1 x "
        "dp_replicate 2 x dp_shard 4 (ep 2 x edp 4 = 8 data ranks). Start 8, or override the launch section, such as "
        "launch.nnodes=1 launch.nproc_per_node=6, and the degrees with it."
    )


def test_c137_next_to_other_problems_the_number_of_processes_is_one_of_them(base) -> None:
    lines = refused(base("train.seq_len=100"), world_size=3)
    assert len(lines) == 2
    assert any("3 process(es) were started" in line for line in lines)


def test_a_recipe_made_in_python_is_checked_too(base) -> None:
    recipe = base().recipe
    recipe = replace(recipe, train=replace(recipe.train, seq_len=100))
    assert refused(LoadedRecipe.of(recipe)) == [
        "train.seq_len: given 100; must not exceed model.max_position_embeddings = 64. Use 64 or less, or raise "
        "model.max_position_embeddings."
    ]


LEAVES = [
    "schema_version",
    "name",
    *(
        f"{section}.{spec.name}"
        for section, hint in hints_of(Recipe).items()
        if is_dataclass(hint)
        for spec in fields(hint)
    ),
    *(f"optimizer.lr_schedule.{spec.name}" for spec in fields(LearningRateConfig)),
]
SECTIONS = [name for name, hint in hints_of(Recipe).items() if is_dataclass(hint)]


@pytest.mark.parametrize("path", [*LEAVES, *SECTIONS])
def test_one_unreadable_value_is_one_problem_wherever_it_is(recipes, path) -> None:
    loaded = read_recipe(recipes.over_base(""), [f"{path}=???"])
    (line,) = refused(loaded, world_size=1)
    assert line.startswith(f"{path}=???: {path}: missing: the recipe says ???")


def test_a_schedule_that_runs_phases_needs_a_sharding_that_does_and_no_whole_blocks(base) -> None:
    loaded = base("train.recompute=full")
    found = refused(loaded, Parts(schedule={"runs_phases": True}))
    assert any("train.recompute: given full, which gives a layer one backward" in problem for problem in found)
    assert any("sharding.name: 'whole' runs a model as a whole only" in problem for problem in found)
    fitting = Parts(schedule={"runs_phases": True}, sharding={"runs_phases": True})
    compose(base("train.recompute=selective"), catalog(fitting))
