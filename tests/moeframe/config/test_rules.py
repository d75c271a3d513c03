from __future__ import annotations

import pytest

from moeframe.config.load import read_recipe
from moeframe.config.rules import recipe_problems


def found(base, *overrides: str) -> list[str]:
    return [str(problem) for problem in recipe_problems(base(*overrides).recipe)]


def test_the_base_recipe_breaks_no_rule(base) -> None:
    assert found(base) == []


def test_c40_an_ep_that_does_not_factor_lists_the_legal_ones(base) -> None:
    eight = ("launch.nproc_per_node=8", "parallel.pp=2", "parallel.ep=8", "train.micro_batch_size=1")
    assert found(base, *eight) == [
        "parallel.ep: 8 does not divide both the 4 data ranks of one replica (world 8 / pp 2 / "
        "dp_replicate 1) and the 8 "
        "experts. Legal: 1, 2, 4. To have parallel.ep=8: launch.nproc_per_node=16."
    ]
    (line,) = found(base, *eight, "model.n_routed_experts=6")
    assert "Legal: 1, 2." in line


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["launch.nproc_per_node=4", "parallel.pp=3"],
            "parallel.pp: 3 does not divide the world size 4. Legal: 1, 2, 4.",
        ),
        (
            ["launch.nproc_per_node=4", "parallel.dp_replicate=3", "train.micro_batch_size=1"],
            "parallel.dp_replicate: 3 does not divide the 4 data ranks (world 4 / pp 1). Legal: 1, 2, 4.",
        ),
        (["parallel.ep=0"], "parallel.ep: 0 is not a positive number. Use 1 or more."),
        (["launch.nnodes=0"], "launch.nnodes: given 0; must be 1 or more. Raise it."),
    ],
)
def test_a_layout_that_does_not_factor_is_refused(base, overrides, line) -> None:
    (printed,) = found(base, *overrides)
    assert printed.startswith(line)


def test_c49_a_micro_batch_that_does_not_divide_lists_the_legal_ones(base) -> None:
    assert found(base, "train.micro_batch_size=3") == [
        "train.micro_batch_size: given 3; must divide the 8 sequences of one data rank (global_batch_size 8 / 1 data "
        "ranks). Legal: 1, 2, 4, 8."
    ]


@pytest.mark.parametrize(
    ("batch", "nearest"), [(7, "Nearest legal: 6 or 9."), (2, "Nearest legal: 3."), (10, "Nearest legal: 9 or 12.")]
)
def test_a_global_batch_that_the_ranks_cannot_share_names_the_nearest(base, batch, nearest) -> None:
    (line,) = found(base, "launch.nproc_per_node=3", f"train.global_batch_size={batch}", "train.micro_batch_size=1")
    assert line.startswith(
        f"train.global_batch_size: given {batch}; must be a multiple of the 3 data ranks (world 3 / pp 1)"
    )
    assert line.endswith(nearest)


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("train.steps=0", "train.steps"),
        ("train.seq_len=0", "train.seq_len"),
        ("train.steps=99999999999999999999", "train.steps"),
        ("train.global_batch_size=99999999999999999999", "train.global_batch_size"),
        ("launch.nproc_per_node=99999999999999999999", "launch.nproc_per_node"),
        ("train.seed=-1", "train.seed"),
        ("train.seed=9223372036854775808", "train.seed"),
        ("train.eval_every=-1", "train.eval_every"),
        ("train.global_batch_size=0", "train.global_batch_size"),
        ("train.micro_batch_size=-2", "train.micro_batch_size"),
        ("train.seq_len=65", "train.seq_len"),
        (f"name={'a' * 256}", "name"),
        ("optimizer.lr=0", "optimizer.lr"),
        ("optimizer.lr=.nan", "optimizer.lr"),
        ("optimizer.eps=.inf", "optimizer.eps"),
        ("optimizer.clip_grad_norm=0", "optimizer.clip_grad_norm"),
        ("optimizer.weight_decay=-0.1", "optimizer.weight_decay"),
        ("optimizer.betas=[1.0, 0.95]", "optimizer.betas.0"),
        ("optimizer.betas.1=-0.1", "optimizer.betas.1"),
        ("optimizer.lr_schedule.warmup_steps=-1", "optimizer.lr_schedule.warmup_steps"),
        ("optimizer.lr_schedule.min_lr=1", "optimizer.lr_schedule.min_lr"),
        ("train.recompute_phases=[]", "train.recompute_phases"),
        ("train.recompute_phases=[attend, attend]", "train.recompute_phases"),
        ("debug.ledger_timeout_s=0", "debug.ledger_timeout_s"),
        ("name=a/b", "name"),
        ("name=.hidden", "name"),
    ],
)
def test_a_value_out_of_its_range_is_refused(base, override, path) -> None:
    problems = recipe_problems(base(override).recipe)
    assert [problem.path for problem in problems] == [path]
    assert problems[0].fix


@pytest.mark.parametrize("override", ["train.recompute=full", "debug.poison=true", "debug.ledger=true"])
def test_compiled_modules_are_neither_recomputed_nor_watched(base, override) -> None:
    key, _, value = override.partition("=")
    (problem,) = recipe_problems(base("train.compile=true", override).recipe)
    assert (problem.path, problem.message.partition(";")[0]) == (key, f"given {value} with train.compile=true")


def test_rules_on_readable_values_speak_next_to_unreadable_ones(recipes) -> None:
    loaded = read_recipe(recipes.over_base("train: {steps: x, seq_len: 100, micro_batch_size: 3}\nparallel: {ep: y}"))
    assert [problem.path for problem in recipe_problems(loaded.recipe)] == ["train.seq_len", "train.micro_batch_size"]


def test_every_mtp_module_finds_a_target_in_a_sequence(base) -> None:
    good = base("model.num_nextn_predict_layers=2", "train.seq_len=3").recipe
    assert recipe_problems(good) == []
    (problem,) = recipe_problems(base("model.num_nextn_predict_layers=2", "train.seq_len=2").recipe)
    assert problem.path == "train.seq_len"
    assert "MTP module 2 (model.num_nextn_predict_layers) predicts 3 tokens ahead" in problem.message
    assert "Use 3 or more" in problem.fix


@pytest.mark.parametrize("key", ["model.num_hidden_layers", "model.n_routed_experts", "parallel.ep", "parallel.pp"])
def test_a_number_beyond_any_machine_is_refused_without_being_counted_through(base, key: str) -> None:
    for number in ("2147483647", "9" * 99):
        lines = found(base, f"{key}={number}")
        assert any(line.startswith(f"{key}: ") for line in lines) or key == "model.n_routed_experts"
    assert found(base, f"{key}={'9' * 99}")
