"""Every shipped recipe: what it says on top, and that it composes for the world it is made for (C92)."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from moeframe.config.compose import Composition, compose
from moeframe.config.load import load_recipe
from moeframe.errors import RecipeError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager

FOLDER = Path(__file__).parents[1] / "recipes"
RECIPES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.y*ml"))


NEED_MORE = {"deepseek_v3/megatron_fsdp_2gpu.yaml": "megatron_fsdp"}
"""Recipes whose parts need a library and a GPU, with the module they need."""


def composed(name: str, *overrides: str, world_size: int | None = None) -> Composition:
    loaded = load_recipe(FOLDER / name, overrides)
    host = build_plugin_manager(wanted=loaded.backends, environment={})
    return compose(loaded, Catalog(host), world_size=world_size, elsewhere=name in NEED_MORE)


def heading(name: str) -> str:
    """Return the comment that a recipe opens with."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines[: lines.index("schema_version: 1")] if line)


def test_there_are_eight_recipes() -> None:
    assert RECIPES == [
        "deepseek_v3/671b.yaml",
        "deepseek_v3/megatron_fsdp_2gpu.yaml",
        "deepseek_v3/moonlight_16b.yaml",
        "deepseek_v3/overlap_2gpu.yaml",
        "deepseek_v3/proxy_2gpu.yaml",
        "deepseek_v3/tiny.yaml",
        "deepseek_v3/v2_lite_16b.yaml",
        "quickstart.yaml",
    ]


@pytest.mark.parametrize(
    ("name", "world", "ep"),
    [
        ("quickstart.yaml", 2, 2),
        ("deepseek_v3/tiny.yaml", 1, 1),
        ("deepseek_v3/v2_lite_16b.yaml", 8, 8),
        ("deepseek_v3/moonlight_16b.yaml", 8, 8),
        ("deepseek_v3/proxy_2gpu.yaml", 2, 2),
        ("deepseek_v3/overlap_2gpu.yaml", 2, 2),
        ("deepseek_v3/megatron_fsdp_2gpu.yaml", 2, 2),
        ("deepseek_v3/671b.yaml", 256, 64),
    ],
)
def test_c92_a_recipe_composes_for_its_world(name, world, ep) -> None:
    degrees = composed(name, world_size=world).degrees
    assert (degrees.world, degrees.ep) == (world, ep)


@pytest.mark.parametrize(("name", "module"), NEED_MORE.items())
def test_a_recipe_that_needs_more_is_refused_for_that_alone(name, module) -> None:
    if importlib.util.find_spec(module) is not None:
        pytest.skip(f"{module} is installed here")
    loaded = load_recipe(FOLDER / name)
    host = build_plugin_manager(wanted=loaded.backends, environment={})
    with pytest.raises(RecipeError) as caught:
        compose(loaded, Catalog(host))
    assert [problem.path for problem in caught.value.problems] == ["sharding.name"]
    assert f"the module {module} is not installed" in caught.value.problems[0].message


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_opens_with_its_purpose_its_launch_and_one_override(name) -> None:
    text = heading(name)
    assert all(line.startswith("#") for line in text.splitlines())
    purpose = text.split("#\n#   launch:")[0]
    assert len(purpose) > 80
    (launch,) = re.findall(r"^#   launch: +(.*moeframe run recipes/\S+)$", text, re.MULTILINE)
    assert launch.endswith(f"moeframe run recipes/{name}")
    (override,) = re.findall(r"^#   override: +moeframe (?:run|check) recipes/(\S+ .*)$", text, re.MULTILINE)
    shown, *settings = override.split()
    assert shown == name
    assert settings
    composed(name, *settings)


def test_the_recipes_page_lists_every_shipped_recipe_once() -> None:
    page = (FOLDER.parent / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `recipes/(\S+)` \|", page, re.MULTILINE)) == RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_names_no_path_of_a_machine(name) -> None:
    assert not re.search(r"(^|\s)(/|~/)\w", (FOLDER / name).read_text(encoding="utf-8"))


def test_the_tiny_recipe_has_every_part_of_the_large_one() -> None:
    tiny, large = (composed(f"deepseek_v3/{name}.yaml").recipe.model for name in ("tiny", "671b"))
    for model in (tiny, large):
        assert model.q_lora_rank is not None
        assert model.first_k_dense_replace > 0
        assert (model.scoring_func, model.topk_method, model.norm_topk_prob) == ("sigmoid", "noaux_tc", True)
        assert model.n_group > model.topk_group > 1
        assert model.n_shared_experts == 1
        assert model.num_nextn_predict_layers == 1
        assert model.aux_loss_alpha > 0
        assert model.bias_update_speed > 0
    assert tiny.vocab_size == 256


def test_the_quickstart_is_a_real_expert_parallel_job() -> None:
    composition = composed("quickstart.yaml")
    assert (composition.dispatcher.offer.name, composition.sharding.offer.name) == ("alltoall", "fsdp2")
    assert composition.degrees.ep == 2
    assert composition.recipe.data.name == "python_sources"
    assert composition.recipe.train.steps == 200
    assert composition.recipe.train.eval_every > 0


def test_the_launch_section_fits_the_launch_line() -> None:
    launch = load_recipe(FOLDER / "deepseek_v3/671b.yaml").recipe.launch
    assert f"--nodes={launch.nnodes} --ntasks-per-node={launch.nproc_per_node} " in heading("deepseek_v3/671b.yaml")
