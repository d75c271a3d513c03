from __future__ import annotations

import math

import pytest

from moeframe.config.scalars import kind_of, read_bool, read_float, read_int, untyped
from moeframe.config.tree import DEFAULT, Leaf


def plain(text: str) -> Leaf:
    return Leaf(text, quoted=False, origin=DEFAULT)


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("null", ["", "~", "null", "Null", "NULL"]),
        ("bool", ["true", "False", "TRUE"]),
        ("yes_no", ["yes", "No", "ON", "off"]),
        ("int", ["0", "-7", "+12", "1_000_000"]),
        ("float", ["1.5", "1e-4", "1E+4", ".5", "-2.", ".inf", "-.INF", ".nan"]),
        ("sexagesimal", ["12:30", "12:30:45", "-1:00.5"]),
        ("date", ["2024-01-31", "2024-01-31T10:00:00Z"]),
        ("radix", ["010", "0x1F", "0b11", "0o17", "007.5"]),
        ("text", ["hello", "1e", "None", "1.2.3", "-", "fsdp2", "a:b", "e4", "nan", "inf", "y"]),
    ],
)
def test_a_plain_scalar_is_of_one_kind(kind, texts) -> None:
    assert {text: kind_of(plain(text)) for text in texts} == dict.fromkeys(texts, kind)


def test_a_quoted_scalar_is_text() -> None:
    assert kind_of(Leaf("no", quoted=True, origin=DEFAULT)) == "text"


@pytest.mark.parametrize(
    "value", [0, -3, 10**15, 0.1, 1e-4, 1e300, -2.5e-8, math.inf, -math.inf, True, False, None, "x", "no"]
)
def test_a_python_scalar_survives_as_a_leaf(value) -> None:
    known, read = untyped(Leaf.of(value))
    assert known
    assert (read, type(read)) == (value, type(value))


def test_nan_survives_as_a_leaf() -> None:
    assert math.isnan(read_float(Leaf.of(math.nan)) or 0.0)


def test_c69_an_exponent_without_a_dot_is_a_number() -> None:
    assert read_float(plain("1e-4")) == 1e-4
    assert read_int(plain("1e3")) is None


def test_c74_a_truth_value_is_true_false_1_or_0() -> None:
    given = {text: read_bool(plain(text)) for text in ("true", "FALSE", "1", "0", "2", "yes", "maybe", "")}
    assert given == {"true": True, "FALSE": False, "1": True, "0": False} | dict.fromkeys(("2", "yes", "maybe", ""))
    assert read_bool(Leaf("no", quoted=True, origin=DEFAULT)) is None


@pytest.mark.parametrize("text", ["no", "12:30:45", "2024-01-31", "010"])
def test_an_ambiguous_scalar_is_never_guessed(text) -> None:
    assert untyped(plain(text)) == (False, None)
