"""What may stand between ``${`` and ``}``: a key, nothing else."""

from __future__ import annotations

import re
from typing import Final

from moeframe.config.tree import Leaf
from moeframe.errors import Problem

__all__ = ["forbidden_interpolation"]

_REFERENCE: Final = re.compile(r"\$\{[A-Za-z_]\w*(\.\w+)*\}")
_OPENING: Final = re.compile(r"\$\{[^}]*\}?")
_RESOLVER: Final = re.compile(r"\$\{\s*([\w.]*)\s*:")


def forbidden_interpolation(leaf: Leaf, path: str) -> Problem | None:
    """Return why a text with ``${`` may not stand in a recipe, None when it may."""
    where = leaf.origin.where
    call = _RESOLVER.search(leaf.text)
    if call is not None:
        message = f"{leaf.text!r} calls the resolver {call[1]!r}; a recipe is data and runs none."
        fix = "Write the value; only ${section.key} is looked up."
        if call[1] == "oc.env":
            variable = leaf.text.split(":", 1)[1].split(",")[0].split("}")[0].strip() or "NAME"
            fix = f'Give it on the command line instead: `moeframe run RECIPE {path}="${variable}"`.'
        return Problem(path=path, message=message, fix=fix, where=where)
    if leaf.text.count("${") != len(_REFERENCE.findall(leaf.text)):
        bad = next(found for found in _OPENING.findall(leaf.text) if not _REFERENCE.fullmatch(found))
        message = f"{bad!r} is not an interpolation that a recipe may hold."
        return Problem(path=path, message=message, fix="Write ${section.key}, such as ${train.seq_len}.", where=where)
    return None
