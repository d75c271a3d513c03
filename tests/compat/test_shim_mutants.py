from __future__ import annotations

import pytest
from moeframe_compat.testing import compare_sources

# How the old value travels: TAKE is the condition, GIVE the value handed on. Each style is one way to write a shim.
STYLES = {
    "kwargs": """
import warnings
def setup({first}**old):
    if {take}:
        warnings.warn("enable is now use", DeprecationWarning, stacklevel=2)
        use = {give}
    return use, tp
""",
    "constructor": """
import warnings
class setup:
    def __init__(self, {first}**old):
        if {take}:
            warnings.warn("enable is now use", DeprecationWarning, stacklevel=2)
            use = {give}
        self.use = use
        self.tp = tp
""",
    "decorator": """
import functools, warnings
def renamed(fn):
    @functools.wraps(fn)
    def inner(*args, **old):
        if {take}:
            warnings.warn("enable is now use", DeprecationWarning, stacklevel=2)
            value = {give}
            old.pop("enable", None)
            old["use"] = value
        old.pop("enable", None)
        return fn(*args, **old)
    return inner
@renamed
def setup({plain}): return use, tp
""",
    "helper": """
import warnings
def _old(old, use):
    if {take}:
        warnings.warn("enable is now use", DeprecationWarning, stacklevel=3)
        return {give}
    return use
def setup({first}**old):
    use = _old(old, use)
    return use, tp
""",
}
GIVEN, VALUE = '"enable" in old', 'old["enable"]'
MUTANTS = {
    "drops what is false": ('old.get("enable")', VALUE),
    "drops what is None or false, by or": (GIVEN, 'old["enable"] or True'),
    "inverts": (GIVEN, 'not old["enable"]'),
    "always true": (GIVEN, "True"),
    "ignores": (GIVEN, '(old["enable"], True)[1]'),
}
BEFORE = "def setup(enable=True, tp=1): return enable, tp\n"
BEFORE_CLASS = (
    "class setup:\n    def __init__(self, enable=True, tp=1):\n        self.use = enable\n        self.tp = tp\n"
)


def rules(style: str, take: str, give: str, first: str = "use=True, tp=1, ") -> set[str]:
    after = STYLES[style].format(take=take, give=give, first=first, plain=first.rstrip(", "))
    before = BEFORE_CLASS if style == "constructor" else BEFORE
    return {f.rule for f in compare_sources(before, after).breaking}


@pytest.mark.parametrize("style", STYLES)
def test_a_working_shim_is_silent(style: str) -> None:
    assert rules(style, GIVEN, VALUE) == set()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_shim_is_named_as_one(style: str, mutant: str) -> None:
    found = rules(style, *MUTANTS[mutant])
    assert found
    assert found <= {"DP004", "DP005"}


@pytest.mark.parametrize("style", [s for s in STYLES if s != "decorator"])
def test_a_shim_that_moves_positions_is_named_as_one(style: str) -> None:
    assert rules(style, GIVEN, VALUE, first="tp=1, use=True, ") == {"DP004"}


def test_a_decorator_shim_that_moves_positions_is_found() -> None:
    assert rules("decorator", GIVEN, VALUE, first="tp=1, use=True, ") & {"DP004", "PY103"}
