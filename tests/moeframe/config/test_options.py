from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest

from moeframe.config.options import typed_options
from moeframe.config.provenance import Provenance
from moeframe.config.typed import HOLE


@dataclass(frozen=True, kw_only=True)
class Buffers:
    num_sms: int = 24
    share: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Options:
    mode: Literal["auto", "off"] = "auto"
    check: bool = False
    limit: int | None = None
    label: str = "x"
    sizes: tuple[int, ...] = (1, 2)
    names: list[str] = field(default_factory=list)
    table: Mapping[str, int] = field(default_factory=dict)
    buffers: Buffers = field(default_factory=Buffers)


def typed(mapping, cls=Options):
    return typed_options(cls, mapping, "dispatcher.options", Provenance(), owner="dispatcher 'fast'")


def test_no_options_are_the_defaults() -> None:
    assert typed({}) == (Options(), [])


def test_values_of_every_type_are_taken() -> None:
    given = {
        "mode": "off",
        "check": True,
        "limit": 3,
        "sizes": [4],
        "names": ["a"],
        "table": {"a": 1},
        "buffers": {"num_sms": 8, "share": 1},
    }
    options, problems = typed(given)
    assert problems == []
    assert options == Options(
        mode="off", check=True, limit=3, sizes=(4,), names=["a"], table={"a": 1}, buffers=Buffers(num_sms=8, share=1.0)
    )
    assert isinstance(options.buffers.share, float)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"buffers": {"num_sms": True}}, "dispatcher.options.buffers.num_sms: given true (a boolean); must be a whole"),
        ({"buffers": {"share": "a"}}, "dispatcher.options.buffers.share: given the quoted text 'a'; must be a number."),
        ({"limit": 2.5}, "dispatcher.options.limit: given 2.5 (a number); must be a whole number or null."),
        ({"label": 3}, "dispatcher.options.label: given 3 without quotes, which is a number; must be text."),
        (
            {"mode": "of"},
            "dispatcher.options.mode: given the quoted text 'of'; must be one of auto, off. Did you mean off",
        ),
        ({"chek": True}, "dispatcher.options.chek: unknown key 'chek'. Did you mean 'check'?"),
        (
            {"zzz": 1},
            "dispatcher.options.zzz: unknown key 'zzz'. Keys of the options of dispatcher 'fast': mode, check,",
        ),
        ({"check": 2}, "dispatcher.options.check: given 2 (a whole number); must be true or false."),
    ],
)
def test_a_wrong_option_is_named_with_its_path(given, line) -> None:
    _, problems = typed(given)
    assert [str(problem)[: len(line)] for problem in problems] == [line]


def test_every_wrong_option_is_reported() -> None:
    options, problems = typed({"check": "x", "limit": "y", "label": "fine"})
    assert [problem.path for problem in problems] == ["dispatcher.options.check", "dispatcher.options.limit"]
    assert options.check is HOLE
    assert options.label == "fine"


def test_a_backend_without_options_says_so() -> None:
    @dataclass(frozen=True)
    class Nothing:
        pass

    _, problems = typed({"x": 1}, Nothing)
    assert str(problems[0]) == (
        "dispatcher.options.x: unknown key 'x'. There is nothing to set in the options of dispatcher 'fast'."
    )


def test_types_that_cannot_be_read_are_blamed_on_the_plugin() -> None:
    @dataclass(frozen=True)
    class Broken:
        x: Missing = 1  # noqa: F821

    options, problems = typed({}, Broken)
    assert options is HOLE
    assert "the plugin's class Broken has types that cannot be read" in problems[0].message


def test_options_of_a_file_are_typed_as_they_were_written(recipes) -> None:
    loaded = recipes.load("dispatcher: {options: {mode: 'off', label: 'no', buffers: {share: 1e-4}}}")
    options, problems = typed_options(
        Options, loaded.recipe.dispatcher.options, "dispatcher.options", loaded.provenance, owner="dispatcher 'fast'"
    )
    assert problems == []
    assert (options.mode, options.label, options.buffers.share) == ("off", "no", 1e-4)
    loaded = recipes.load("dispatcher: {options: {label: 1e-4, limit: None}}")
    _, problems = typed_options(Options, loaded.recipe.dispatcher.options, "dispatcher.options", loaded.provenance)
    assert [str(problem) for problem in problems] == [
        "r.yaml:2:44: dispatcher.options.limit: given 'None', which is text to YAML. Write null.",
        "r.yaml:2:31: dispatcher.options.label: given 1e-4 without quotes, which is a number; must be text. "
        'Quote it: "1e-4".',
    ]
