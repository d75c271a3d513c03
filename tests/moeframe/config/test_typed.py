from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from moeframe.config.tree import DEFAULT, Leaf
from moeframe.config.typed import HOLE, Reader, UnknownValueError, default_tree, tree_of


def plain(text: str) -> Leaf:
    return Leaf(text, quoted=False, origin=DEFAULT)


def read(hint: Any, tree: Any) -> Any:
    """Return the value, or the printed problems."""
    reader = Reader()
    value = reader.read(hint, tree, "k")
    if reader.problems:
        assert value is HOLE
        return [str(problem) for problem in reader.problems]
    return value


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int
    rate: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner
    extra: Inner | None = None
    mode: Literal["a", "b"] = "a"
    free: Mapping[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize("text", ["1e-4", "1.0e-4", "0.0001", "+1E-4"])
def test_c69_a_float_field_reads_every_spelling(text) -> None:
    assert read(float, plain(text)) == 1e-4


def test_an_int_is_good_for_a_float_field_and_becomes_one() -> None:
    assert isinstance(read(float, plain("3")), float)


def test_infinity_is_a_float() -> None:
    assert read(float, plain(".inf")) == math.inf


@pytest.mark.parametrize(
    ("hint", "text", "fix"),
    [
        (int, "1e3", "Write 1000."),
        (int, "2.0", "Write 2."),
        (int, "2.5", "Write a whole number in decimal digits, such as 200."),
        (int, "010", "Write a whole number in decimal digits, such as 200."),
        (int, "0x10", "Write a whole number in decimal digits, such as 200."),
        (int, "true", "Write a whole number in decimal digits, such as 200."),
        (int, "12:30:45", "Write a whole number in decimal digits, such as 200."),
        (float, "fast", "Write a number, such as 0.1 or 1e-4."),
        (float, "true", "Write a number, such as 0.1 or 1e-4."),
        (bool, "2", "Write true or false."),
        (bool, "yes", "Write true."),
        (bool, "off", "Write false."),
        (bool, "maybe", "Write true or false."),
    ],
)
def test_a_wrong_scalar_says_what_to_write(hint, text, fix) -> None:
    (line,) = read(hint, plain(text))
    assert text in line
    assert line.endswith(fix)


def test_c71_none_is_not_null() -> None:
    assert read(int | None, plain("None")) == ["k: given 'None', which is text to YAML. Write null."]
    assert read(str | None, plain("None")) == ["k: given 'None', which is text to YAML. Write null."]
    assert read(int, plain("None")) == [
        "k: given 'None'; must be a whole number. Python's None is null in YAML, and null is not allowed here; give a "
        "value."
    ]
    assert read(str | None, Leaf("None", quoted=True, origin=DEFAULT)) == "None"


@pytest.mark.parametrize("text", ["null", "~", ""])
def test_c71_null_is_none_where_it_is_allowed(text) -> None:
    assert read(int | None, plain(text)) is None
    assert "null" in read(int, plain(text))[0]


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("off", "a boolean in YAML 1.1"),
        ("no", "a boolean in YAML 1.1"),
        ("true", "a boolean"),
        ("1e-4", "a number"),
        ("12", "a number"),
        ("12:30:45", "a number in base 60 in YAML 1.1"),
        ("2024-01-31", "a date in YAML 1.1"),
    ],
)
def test_c72_c73_a_text_field_refuses_what_is_not_text_to_yaml(text, reading) -> None:
    assert read(str, plain(text)) == [
        f'k: given {text} without quotes, which is {reading}; must be text. Quote it: "{text}".'
    ]
    assert read(str, Leaf(text, quoted=True, origin=DEFAULT)) == text


def test_c74_a_quoted_truth_value_is_text() -> None:
    assert read(bool, Leaf("no", quoted=True, origin=DEFAULT)) == [
        "k: given the quoted text 'no'; must be true or false. Write false."
    ]
    assert [read(bool, plain(text)) for text in ("true", "1", "false", "0")] == [True, True, False, False]


def test_a_quoted_number_is_text() -> None:
    assert read(int, Leaf("50", quoted=True, origin=DEFAULT)) == [
        "k: given the quoted text '50'; must be a whole number. Remove the quotes: 50."
    ]


def test_a_choice_suggests_the_nearest() -> None:
    hint = Literal["float32", "bfloat16"]
    assert read(hint, plain("bfloat16")) == "bfloat16"
    assert read(hint, plain("bfloat")) == [
        "k: given 'bfloat'; must be one of float32, bfloat16. Did you mean bfloat16?"
    ]
    assert read(Literal["on", "auto"], plain("on"))[0].endswith('Quote it: "on".')


def test_a_choice_of_numbers_takes_numbers() -> None:
    assert read(Literal[1, 2], plain("2")) == 2
    assert read(Literal[1, 2], Leaf("2", quoted=True, origin=DEFAULT)) == [
        "k: given the quoted text '2'; must be one of 1, 2. Did you mean 2?"
    ]


def test_lists_have_the_length_and_the_types_of_the_field() -> None:
    assert read(tuple[float, float], tree_of([1, 2.5])) == (1.0, 2.5)
    assert read(tuple[int, ...], tree_of([1, 2, 3])) == (1, 2, 3)
    assert read(list[str], tree_of(["a"])) == ["a"]
    assert read(tuple[float, float], tree_of([1])) == [
        "k: given 1 entries; must be a list of 2: [a number, a number]. Give 2 entries."
    ]
    assert read(tuple[float, float], plain("a,b")) == [
        "k: given 'a,b'; must be a list of 2: [a number, a number]. Put it in brackets: [a,b]."
    ]


def test_a_wrong_entry_of_a_list_has_its_own_path() -> None:
    reader = Reader()
    reader.read(tuple[float, float], tree_of([0.9, "x"]), "optimizer.betas")
    assert [problem.path for problem in reader.problems] == ["optimizer.betas.1"]


def test_a_union_takes_the_first_type_that_fits() -> None:
    assert read(int | str, plain("3")) == 3
    assert read(int | str, plain("x")) == "x"
    assert read(int | bool | None, plain("null")) is None
    assert read(int | list[int], tree_of({"a": 1})) == [
        "k: given a mapping; must be a whole number or a list, each entry a whole number. Correct the value."
    ]


def test_nested_dataclasses_are_read_with_dotted_paths() -> None:
    tree = tree_of({"name": "n", "inner": {"size": 3}, "extra": {"size": 4, "rate": 1}})
    assert read(Outer, tree) == Outer(name="n", inner=Inner(size=3), extra=Inner(size=4, rate=1.0))


def test_every_problem_is_found_in_one_pass() -> None:
    tree = tree_of({"name": "n", "inner": {"size": "x", "rat": 1}, "mode": "c", "colour": 1})
    reader = Reader()
    value = reader.read(Outer, tree, "")
    assert sorted(problem.path for problem in reader.problems) == ["colour", "inner.rat", "inner.size", "mode"]
    assert value.inner.size is HOLE
    assert value.name == "n"


def test_a_misspelt_required_key_is_one_problem() -> None:
    reader = Reader()
    reader.read(Inner, tree_of({"sice": 3}), "inner")
    assert [str(problem) for problem in reader.problems] == ["inner.sice: unknown key 'sice'. Did you mean 'size'?"]


def test_a_dotted_key_says_how_to_nest() -> None:
    reader = Reader()
    reader.read(Outer, tree_of({"name": "n", "inner": {"size": 1}, "inner.rate": 2}), "")
    assert reader.problems[0].fix == "Nest it: `inner: {rate: ...}`; dotted keys are for the command line."


def test_c81_null_over_a_section_is_refused_unless_it_may_be_null() -> None:
    (line,) = read(Inner, plain("null"))
    assert line.startswith("k: given null over a whole section; must be a mapping with the keys size, rate.")
    assert read(Inner | None, plain("null")) is None


def test_a_value_of_any_type_follows_yaml_and_is_never_guessed() -> None:
    assert read(Mapping[str, Any], tree_of({"a": [1, 2.5, None, True, "x"]})) == {"a": [1, 2.5, None, True, "x"]}
    assert read(Mapping[str, Any], {"a": plain("1e-4")}) == {"a": 1e-4}
    reader = Reader()
    assert reader.read(Mapping[str, Any], {"a": plain("off")}, "data.options")["a"] is HOLE
    assert str(reader.problems[0]) == (
        "data.options.a: given off without quotes, which is a boolean in YAML 1.1. "
        'Quote it ("off") if it is text; otherwise write false.'
    )


def test_a_check_of_the_dataclass_itself_becomes_a_problem() -> None:
    @dataclass(frozen=True)
    class Even:
        n: int = 0

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError(f"n = {self.n} is odd")

    assert read(Even, tree_of({"n": 3})) == ["k: n = 3 is odd. Correct the values."]
    assert read(Even, tree_of({"n": "x"})) == [
        "k.n: given the quoted text 'x'; must be a whole number. Write a whole number in decimal digits, such as 200."
    ]


def test_defaults_become_a_tree_without_required_fields() -> None:
    tree = default_tree(Outer)
    assert set(tree) == {"inner", "extra", "mode", "free"}
    assert set(tree["inner"]) == {"rate"}
    assert str(tree["inner"]["rate"]) == "0.5"


@pytest.mark.parametrize("touch", [lambda h: h.x, lambda h: h + 1, lambda h: h < 1, bool, str, lambda h: f"{h}", hash])
def test_a_hole_cannot_be_used_unnoticed(touch) -> None:
    with pytest.raises(UnknownValueError):
        touch(HOLE)
