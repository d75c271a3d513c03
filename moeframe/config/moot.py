"""Keys that another key switches off, and so would be ignored.

Given at the same layer as the switch, or above it, such a key is refused: its author expects it to act. Given below (a
base recipe tunes what its heir switches off), it goes back to its default, and `explain` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from moeframe.config.provenance import Provenance
from moeframe.config.schema import Recipe
from moeframe.config.tree import Leaf, Origin
from moeframe.config.typed import UnknownValueError, default_of
from moeframe.errors import Problem

__all__ = ["moot_keys", "moot_problems", "reset_moot_keys", "value_at"]


@dataclass(frozen=True, kw_only=True)
class _Switch:
    """While `off` holds of the recipe, `keys` do nothing because of `key`."""

    key: str
    off: Callable[[Recipe], bool]
    keys: tuple[str, ...]
    instead: str


_SCHEDULE: Final = "optimizer.lr_schedule"
_SWITCHES: Final = (
    _Switch(
        key="train.eval_every",
        off=lambda r: r.train.eval_every == 0,
        keys=("train.eval_sequences",),
        instead="set train.eval_every to the number of steps between validations",
    ),
    _Switch(
        key="train.recompute",
        off=lambda r: r.train.recompute != "selective",
        keys=("train.recompute_phases",),
        instead="set train.recompute to selective",
    ),
    _Switch(
        key="debug.ledger",
        off=lambda r: not r.debug.ledger,
        keys=("debug.ledger_timeout_s",),
        instead="set debug.ledger to true",
    ),
    _Switch(
        key="watchdog.enabled",
        off=lambda r: not r.watchdog.enabled,
        keys=tuple(f"watchdog.{key}" for key in ("action", "min_s", "median_steps", "first_step_s", "save_s")),
        instead="set watchdog.enabled to true",
    ),
    _Switch(
        key=f"{_SCHEDULE}.constant_steps",
        off=lambda r: r.optimizer.lr_schedule.constant_steps is None and r.optimizer.lr_schedule.decay_steps > 0,
        keys=(f"{_SCHEDULE}.decay_steps",),
        instead=f"set {_SCHEDULE}.constant_steps to the number of steps before the decay",
    ),
    _Switch(
        key=f"{_SCHEDULE}.decay_steps",
        off=lambda r: r.optimizer.lr_schedule.decay_steps == 0,
        keys=tuple(f"{_SCHEDULE}.{name}" for name in ("constant_steps", "min_lr", "min_lr_steps")),
        instead=f"set {_SCHEDULE}.decay_steps to the length of the decay",
    ),
    _Switch(
        key=f"{_SCHEDULE}.min_lr_steps",
        off=lambda r: r.optimizer.lr_schedule.min_lr_steps is None,
        keys=(f"{_SCHEDULE}.final_lr",),
        instead=f"set {_SCHEDULE}.min_lr_steps to the number of steps before it",
    ),
    _Switch(
        key="model.num_nextn_predict_layers",
        off=lambda r: r.model.num_nextn_predict_layers == 0,
        keys=("model.mtp_loss_weight",),
        instead="set model.num_nextn_predict_layers to 1 or more",
    ),
    _Switch(
        key="model.init_from",
        off=lambda r: r.model.init_from is None,
        keys=("model.init_from_differs",),
        instead="set model.init_from to the directory whose values it names",
    ),
    _Switch(
        key="model.topk_method",
        off=lambda r: r.model.topk_method != "noaux_tc",
        keys=("model.bias_update_speed",),
        instead="set model.topk_method to noaux_tc, which alone has a correction bias",
    ),
    _Switch(
        key="model.aux_loss_alpha",
        off=lambda r: r.model.aux_loss_alpha == 0,
        keys=("model.aux_loss_selection",),
        instead="set model.aux_loss_alpha above 0",
    ),
)


def moot_keys(recipe: Recipe) -> dict[str, _Switch]:
    """Return the keys that do nothing in this recipe, each with its switch."""
    return {key: switch for switch in _SWITCHES if _is_off(switch, recipe) for key in switch.keys}


def moot_problems(recipe: Recipe, provenance: Provenance) -> Iterator[Problem]:
    """Report keys that were given although they do nothing.

    In a recipe without provenance a key counts as given when it differs from its default.
    """
    for key, switch in moot_keys(recipe).items():
        value, default = value_at(recipe, key), _default_at(recipe, key)
        given = provenance.is_explicit(key) if len(provenance) else value != default
        if not given:
            continue
        setting = value_at(recipe, switch.key)
        message = f"given {_yaml(value)}, but it is ignored while {switch.key} is {_yaml(setting)}."
        yield Problem(path=key, message=message, fix=f"Remove it, or {switch.instead}.")


def reset_moot_keys(recipe: Recipe, provenance: Provenance) -> tuple[Recipe, Provenance]:
    """Set the keys that a higher layer made moot back to their defaults, until none is left."""
    while True:
        for key, switch in moot_keys(recipe).items():
            if provenance.is_explicit(key) and provenance.layer(key) < provenance.layer(switch.key):
                was = f"{provenance[key]} gave {_yaml(value_at(recipe, key))}"
                note = f"{was}, without effect since {provenance[switch.key]}"
                provenance = provenance.with_origin(
                    key, Origin(kind="default", note=note), layer=provenance.layer(switch.key)
                )
                recipe = _with_value(recipe, key.split("."), _default_at(recipe, key))
                break
        else:
            return recipe, provenance


def value_at(owner: Any, path: str) -> Any:
    """Return the value at a dotted path of nested dataclasses."""
    for name in path.split("."):
        owner = getattr(owner, name)
    return owner


def _is_off(switch: _Switch, recipe: Recipe) -> bool:
    """Return whether the switch is off; a value that could not be read counts as on."""
    try:
        return switch.off(recipe)
    except UnknownValueError:
        return False


def _default_at(recipe: Recipe, path: str) -> Any:
    """Return the default of the field at a dotted path."""
    section, _, name = path.rpartition(".")
    return next(default_of(spec) for spec in fields(value_at(recipe, section)) if spec.name == name)


def _with_value(owner: Any, names: list[str], value: Any) -> Any:
    """Return a copy of nested dataclasses with one value replaced."""
    name, *rest = names
    return replace(owner, **{name: _with_value(getattr(owner, name), rest, value) if rest else value})


def _yaml(value: Any) -> str:
    """Return a scalar, or a list of them, as a recipe writes it."""
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_yaml, value))}]"
    return Leaf.of(value).text
