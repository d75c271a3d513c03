from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

from moeframe import checkpoint_names
from moeframe.checkpoint_names import current_name, names_in, recipe_section, translate
from moeframe.config.ledger import Change, forget_what_was_told
from moeframe.errors import MoeframeDeprecationWarning, UserInputError
from moeframe.train.load_state import load_state


def entry(surface: str, old: str, new: str, **more: Any) -> Change:
    given = {"kind": "rename", "since": "0.2.0", "remove_in": "9.0.0", "reason": "A trial."} | more
    return Change(surface=surface, old=old, new=new, **given)


LEDGER = [
    entry("checkpoint", "blocks.*.gate", "blocks.*.attend.router"),
    entry("checkpoint", "blocks.*.attend.router", "blocks.*.attend.chooser"),
    entry("checkpoint", "out", "head", remove_in="0.1.0"),
    entry("config", "model.width", "model.hidden_size"),
    entry("config", "model.kind", "model.family", value_map={"old": "new"}),
    entry("config", "train.width", "train.size"),
]


@pytest.fixture(autouse=True)
def ledger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(checkpoint_names, "changes", lambda name: tuple(c for c in LEDGER if c.surface == name))
    forget_what_was_told()
    yield
    forget_what_was_told()


def told(act: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = act()
    assert all(issubclass(w.category, MoeframeDeprecationWarning) for w in caught)
    return value, [str(w.message) for w in caught]


def test_a_star_stands_for_one_part_and_renames_follow_each_other() -> None:
    assert current_name("blocks.12.gate.weight") == "blocks.12.attend.chooser.weight"
    assert current_name("blocks.gate.weight") == "blocks.gate.weight"
    assert current_name("mtp.0.gate.weight") == "mtp.0.gate.weight"
    assert current_name("blocks.0.gates.weight") == "blocks.0.gates.weight"


def test_old_names_are_told_of_once_however_many_tensors_have_them() -> None:
    saved = {f"blocks.{i}.gate.weight": i for i in range(3)}
    value, messages = told(lambda: translate(saved, Path("step-1")))
    assert value == {f"blocks.{i}.attend.chooser.weight": i for i in range(3)}
    assert len(messages) == 2
    assert "step-1: blocks.*.gate is called blocks.*.attend.router since 0.2.0" in messages[0]
    assert told(lambda: translate(saved, Path("step-1")))[1] == []


def test_one_tensor_under_two_names_must_be_equal() -> None:
    both = {"blocks.0.gate.weight": 1, "blocks.0.attend.chooser.weight": 1}
    assert told(lambda: translate(both))[0] == {"blocks.0.attend.chooser.weight": 1}
    with pytest.raises(UserInputError, match=r"blocks\.0\.gate\.weight and blocks\.0\.attend\.chooser\.weight"):
        told(lambda: translate(both | {"blocks.0.gate.weight": True}))
    with pytest.raises(UserInputError, match="different values"):
        told(lambda: names_in(both, ["blocks.0.attend.chooser.weight"]))


def test_a_name_whose_time_is_over_is_refused_with_the_way_out() -> None:
    with pytest.raises(UserInputError, match=r"step-1 has out.*since 0\.2\.0 it is head.*before 0\.1\.0"):
        translate({"out.weight": 1}, Path("step-1"))


def test_what_a_checkpoint_keeps_of_the_recipe_gets_the_keys_and_values_of_today() -> None:
    value, messages = told(lambda: recipe_section("model", {"width": 0, "kind": "old", "depth": None}))
    assert value == {"hidden_size": 0, "family": "new", "depth": None}
    assert len(messages) == 2
    with pytest.raises(UserInputError, match=r"model\.width and model\.hidden_size"):
        recipe_section("model", {"width": 1, "hidden_size": 2})


@pytest.mark.filterwarnings("ignore:.*single process:UserWarning")
def test_an_old_checkpoint_is_loaded_by_the_names_of_today(tmp_path: Path) -> None:
    old, new = "blocks.0.gate.weight", "blocks.0.attend.chooser.weight"

    def state(name: str, value: float) -> dict[str, Any]:
        return {
            "model": {name: torch.full((2,), value), "norm": torch.full((1,), value)},
            "optimizer": {name: {"exp_avg": torch.full((2,), 2 * value)}, "norm": {"exp_avg": torch.zeros(1)}},
            "random": {"rank-0": [value]},
        }

    save(state(old, 3.0), checkpoint_id=tmp_path, no_dist=True)
    fresh = state(new, 0.0)
    with pytest.warns(MoeframeDeprecationWarning, match="is called"):
        load_state(fresh, tmp_path, None)
    assert torch.equal(fresh["model"][new], torch.full((2,), 3.0))
    assert torch.equal(fresh["optimizer"][new]["exp_avg"], torch.full((2,), 6.0))
    assert torch.equal(fresh["model"]["norm"], torch.full((1,), 3.0))
    assert fresh["random"] == {"rank-0": [3.0]}


def test_names_need_no_torch() -> None:
    code = "import moeframe.checkpoint_names, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
