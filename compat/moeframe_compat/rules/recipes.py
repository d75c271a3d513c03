"""CF009-CF012: resolvers and the YAML files that a package bundles."""

from __future__ import annotations

import re

from moeframe_compat.index.values import same
from moeframe_compat.model.surfaces import Recipe
from moeframe_compat.rules.context import Context

_TARGET = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")


def check_recipes(ctx: Context) -> None:
    """All of them."""
    _resolvers(ctx)
    new = {r.file: r for r in ctx.new.snapshot.surfaces.recipes}
    for old in ctx.old.snapshot.surfaces.recipes:
        name = _name(old.file)
        if old.file not in new:
            same_name = [f for f in new if f.rpartition("/")[2] == old.file.rpartition("/")[2]]
            ctx.emit(
                "CF011",
                f"recipe:{name}",
                old=old.file,
                new=same_name[0] if same_name else "",
                at=ctx.survivor(ctx.old.package),
                was=(old.file, 1),
                why=f"recipes based on {name}, and commands that name it, fail",
                fix=f"keep {old.file}, or leave a file that includes its successor",
            )
        else:
            _values(ctx, name, old, new[old.file])


def _values(ctx: Context, name: str, old: Recipe, new: Recipe) -> None:
    for key, value in old.values.items():
        if key not in new.values:
            if not any(k.startswith(f"{key}.") for k in new.values):
                ctx.emit(
                    "CF012",
                    f"recipe:{name}:{key}",
                    old=str(value),
                    new="",
                    at=(new.file, 1),
                    was=(old.file, 1),
                    why=f"runs of {name} now take the default of {key} instead of {value!r}",
                    fix=f"keep {key}: {value!r}",
                )
        elif not same(value, new.values[key]):
            ctx.emit(
                "CF012",
                f"recipe:{name}:{key}",
                old=repr(value),
                new=repr(new.values[key]),
                at=(new.file, 1),
                was=(old.file, 1),
                why=f"runs of {name} now use {key} = {new.values[key]!r}",
                fix=f"keep {value!r}; offer the new value in another recipe",
            )
    had = _targets(old)
    for key in sorted(_targets(new) & had):
        if not _exists(key, new) and _exists(key, old):
            ctx.emit(
                "CF010",
                f"recipe:{name}:{key}",
                old=key,
                new="",
                at=(new.file, 1),
                was=(old.file, 1),
                why=f"${{{key}}} no longer resolves",
                fix=f"keep {key}, or change what refers to it",
            )


def _targets(recipe: Recipe) -> set[str]:
    return {t for v in recipe.values.values() if isinstance(v, str) for t in _TARGET.findall(v)}


def _exists(key: str, recipe: Recipe) -> bool:
    return key in recipe.values or any(k.startswith(f"{key}.") for k in recipe.values)


def _name(file: str) -> str:
    return file.rpartition("/")[2].rsplit(".", 1)[0]


def _resolvers(ctx: Context) -> None:
    new = {r.name for r in ctx.new.snapshot.surfaces.resolvers}
    places = {r.name: (r.file, r.line) for r in ctx.new.snapshot.surfaces.resolvers}
    for r in ctx.old.snapshot.surfaces.resolvers:
        if r.name not in new:
            at = next(iter(places.values()), ctx.survivor(ctx.old.package))
            ctx.emit(
                "CF009",
                f"resolver:{r.name}",
                old=r.name,
                new="",
                at=at,
                was=(r.file, r.line),
                why=f"recipes that use ${{{r.name}:...}} raise UnsupportedInterpolationType",
                fix=f"keep the resolver {r.name} as an alias",
            )
