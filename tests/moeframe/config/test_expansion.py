"""References that multiply are counted, not followed."""

from __future__ import annotations

from moeframe.config.expansion import overgrown
from moeframe.config.tree import DEFAULT, Expression, Leaf


def leaf(text: str) -> Leaf:
    return Leaf(text, quoted=False, origin=DEFAULT)


def expression(text: str) -> Expression:
    return Expression.of(leaf(text))


def test_texts_and_lists_that_double_are_found_from_where_they_are_too_much() -> None:
    texts = {f"x{n}": expression(f"${{x{n - 1}}} ${{x{n - 1}}}") for n in range(1, 60)}
    assert next(iter(overgrown({"x0": leaf("hello"), **texts}))) == "x9"
    lists = {f"x{n}": [expression(f"${{x{n - 1}}}")] * 2 for n in range(1, 60)}
    assert "x59.1" in overgrown({"x0": [leaf("1")], **lists})


def test_what_a_recipe_does_is_no_matter() -> None:
    files = [leaf(f"/data/{number:06}.bin") for number in range(10_000)]
    tree = {"files": files, "a": expression("${files}"), "b": expression("${a}"), "c": expression("${nowhere.x}")}
    assert overgrown(tree) == {}


def test_a_circle_ends() -> None:
    tree = {"a": expression("${b}"), "b": {"c": expression("${a.c}"), "d": expression("${b}")}}
    assert overgrown(tree) == {}


def test_such_a_recipe_is_refused_at_its_line(recipes) -> None:
    doubled = "".join(f"    x{n}: '${{data.options.x{n - 1}}} ${{data.options.x{n - 1}}}'\n" for n in range(1, 40))
    lines = recipes.lines(f"data:\n  options:\n    x0: hello\n{doubled}")
    (line,) = [line for line in lines if "stands for more" in line]
    assert line.startswith("r.yaml:13:9: data.options.x9: '${data.options.x8} ${data.options.x8}' stands for more")
