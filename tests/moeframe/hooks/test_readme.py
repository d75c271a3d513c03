from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from moeframe.hooks import API_VERSION, hookspecs
from moeframe.hooks.static_scan import scan_source

README = Path(hookspecs.__file__).with_name("README.md").read_text(encoding="utf-8")


def _specified() -> dict[str, str]:
    """Return the signature of every hook, as it stands in hookspecs.py."""
    functions = [node for node in ast.parse(inspect.getsource(hookspecs)).body if isinstance(node, ast.FunctionDef)]
    return {
        node.name: f"def {node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}"
        for node in functions
        if node.returns is not None
    }


def test_the_reference_shows_every_hook_with_its_signature_and_in_order() -> None:
    shown = re.findall(r"^### (\w+)\n\n```python\n(.*?)\n```\n\n\S", README, re.DOTALL | re.MULTILINE)
    assert shown == list(_specified().items())


def test_the_example_is_read_as_offering_ring() -> None:
    (example,) = re.findall(r"```python\n(from moeframe\.hooks import .*?)```", README, re.DOTALL)
    index = scan_source(example.encode(), frozenset(_specified())).index
    assert index is not None
    assert index.offers == {("dispatcher", "ring")}


def test_the_reference_names_every_module_of_the_room() -> None:
    folder = Path(hookspecs.__file__).parent
    named = set(re.findall(r"`(\w+\.py)`", README))
    assert named == {path.name for path in folder.glob("*.py")}


def test_the_reference_names_the_version_of_the_contract() -> None:
    assert f"version {API_VERSION} now" in " ".join(README.split())
