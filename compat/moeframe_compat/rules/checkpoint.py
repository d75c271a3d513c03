"""CK001, CK002: keys of saved state, and paths that pickles contain."""

from __future__ import annotations

from moeframe_compat.index.classes import is_dataclass, is_torch_module
from moeframe_compat.index.lookup import Found, Index
from moeframe_compat.index.public import is_private, module_is_public
from moeframe_compat.interpret.shims import Shims
from moeframe_compat.model.objects import NOT_SAVED, Attribute, Class, Function
from moeframe_compat.rules.context import Context
from moeframe_compat.rules.renames import likeness

_MODULE_MAKERS = ("register_buffer", "register_parameter", "add_module", "register_module")


def check_checkpoints(ctx: Context, shims: Shims) -> None:
    """Both rules, over all classes that both releases have."""
    for path, module in sorted(ctx.old.modules.items()):
        if not any(n == "tests" for n in path.split(".")):
            for name, m in module.members.items():
                if isinstance(m, Class):
                    old = Found(f"{path}.{name}", path, m)
                    new = ctx.new.find(old.path)
                    if new is not None and isinstance(new.obj, Class):
                        ctx.within(old)
                        _state(ctx, old, new, shims)
                    elif new is None:
                        _moved(ctx, old)
    ctx.outside()


def _state(ctx: Context, old: Found, new: Found, shims: Shims) -> None:
    keys_old, keys_new = saved_keys(ctx.old, old), saved_keys(ctx.new, new)
    _wrapped(ctx, old, new, keys_old, keys_new, shims)
    lost = [k for k in keys_old if k not in keys_new and (keys_new or _unsaved(ctx.new, new, k))]
    lost = [k for k in lost if not _made_elsewhere(ctx.new, new, k)]
    if not lost:
        return
    fresh = [k for k in keys_new if k not in keys_old]
    for key in lost:
        successor = next(
            (k for k in fresh if keys_new[k] == keys_old[key]), fresh[0] if len(fresh) == len(lost) == 1 else ""
        )
        verdict = shims.state(new, key, successor, list(keys_new))
        if verdict in ("works", "broken"):
            continue
        ctx.emit(
            "CK001",
            f"{old.path}.{key}",
            old=key,
            new=successor,
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why=f"checkpoints of the old release hold {key}: loading them reports a missing and an unexpected key",
            fix=f"rename {key} in a load_state_dict pre-hook" + (f" to {successor}" if successor else ""),
            cause=f"member:{old.path}.{key}->{successor}"
            if successor and not is_private(key)
            else f"state:{key}->{successor}",
        )


def _unsaved(index: Index, cls: Found, key: str) -> bool:
    """Does the class say that it does not save this?"""
    return any(isinstance(c.obj, Class) and c.obj.state.get(key) == NOT_SAVED for c in index.mro(cls))


def _made_elsewhere(index: Index, cls: Found, key: str) -> bool:
    """Does a method other than the constructor set it, or add it by name?"""
    for c in index.mro(cls):
        made = c.obj.members.get(key) if isinstance(c.obj, Class) else None
        if isinstance(made, Attribute) and made.instance and made.setter != "__init__":
            return True
        if isinstance(c.obj, Class) and key in c.obj.named and key not in c.obj.state:
            return True
    return False


def _wrapped(
    ctx: Context, old: Found, new: Found, keys_old: dict[str, str], keys_new: dict[str, str], shims: Shims
) -> None:
    """CK001 for a submodule that stands in a container now, or no longer: its keys got, or lost, a number."""
    for key, text in keys_old.items():
        was, now = _torch_name(text), _torch_name(keys_new.get(key, ""))
        if not was or not now or (was in _CONTAINERS) == (now in _CONTAINERS):
            continue
        inner, gone = (f"{key}.0", f"{key}.weight") if now in _CONTAINERS else (key, f"{key}.0.weight")
        if shims.state(new, gone, "", list(keys_new)) in ("works", "broken"):
            continue
        ctx.emit(
            "CK001",
            f"{old.path}.{key}",
            old=f"{key} = {was}",
            new=f"{key} = {now}",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why=f"checkpoints of the old release name what is in {key} otherwise: {gone} and the like are not found",
            fix=f"rename the keys below {key} to those below {inner} in a load_state_dict pre-hook",
        )


_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")


def _torch_name(text: str) -> str:
    """`Linear` for `nn.Linear(…)`, "" for anything else."""
    head = text.split("(", 1)[0]
    name = head.removeprefix("torch.").removeprefix("nn.")
    return name if head.startswith(("nn.", "torch.nn.")) and name.isidentifier() and name[:1].isupper() else ""


def saved_keys(index: Index, cls: Found) -> dict[str, str]:
    """Entries of the state of a class and its ancestors in the package; empty if it saves none."""
    torch = is_torch_module(index, cls)
    own = {c.path: c for c in index.mro(cls) if isinstance(c.obj, Class)}
    saves = any(
        {"state_dict", "load_state_dict"} <= set(c.obj.members) for c in own.values() if isinstance(c.obj, Class)
    )
    if not torch and not saves:
        return {}
    literal = _returned_keys(own)
    if saves and literal:
        return literal
    external = any(c.path.startswith("torch.nn") for c in index.mro(cls)) or (torch and not saves)
    out: dict[str, str] = {}
    for c in own.values():
        assert isinstance(c.obj, Class)
        for key, text in c.obj.state.items():
            if text == NOT_SAVED:
                continue
            if not external or text in _MODULE_MAKERS or _is_module(index, c, text):
                out.setdefault(key, text)
    return out


def _returned_keys(own: dict[str, Found]) -> dict[str, str]:
    """Keys of the dict that the nearest `state_dict` returns, if it returns one that is written out."""
    for c in own.values():
        made = c.obj.members.get("state_dict") if isinstance(c.obj, Class) else None
        if isinstance(made, Function):
            shapes = [s for s in made.body.returns if s.startswith("dict:") and s != "dict:"]
            return {key: "returned" for shape in shapes for key in shape.removeprefix("dict:").split(",")}
    return {}


def _is_module(index: Index, cls: Found, text: str) -> bool:
    """Does an assigned value look like a submodule or parameter?"""
    head = text.split("(", 1)[0]
    last = head.rpartition(".")[2]
    if "(" not in text or not head.replace(".", "").replace("_", "").isalnum():
        return False
    if head.startswith(("nn.", "torch.nn.")) and last[:1].isupper():
        return True
    if last in ("build_module", "Parameter", "ModuleList", "ModuleDict", "Buffer"):
        return True
    found = index.name(cls.module, head) if not head.startswith("self.") else None
    return (
        found is not None
        and isinstance(found.obj, Class)
        and any(c.path.startswith("torch.nn") for c in index.mro(found))
    )


def _moved(ctx: Context, old: Found) -> None:
    """CK002: a class in a private module, whose path only pickles know, now lives elsewhere."""
    name = old.path.rpartition(".")[2]
    if module_is_public(old.module) or is_private(name) or _never_pickled(ctx.old, old):
        return
    homes = [
        f"{p}.{name}"
        for p, m in sorted(ctx.new.modules.items())
        if isinstance(m.members.get(name), Class) and likeness(old, Found("", "", m.members[name])) > 0.6
    ]
    if not homes:
        return
    ctx.emit(
        "CK002",
        old.path,
        old=old.path,
        new=homes[0],
        at=ctx.survivor(homes[0]),
        was=ctx.old_place(old),
        why=f"pickles that hold a {name} name {old.module}: unpickling raises ModuleNotFoundError or AttributeError",
        fix=f"leave `from {homes[0].rpartition('.')[0]} import {name}` in {old.module}",
    )


def _never_pickled(index: Index, cls: Found) -> bool:
    assert isinstance(cls.obj, Class)
    if index.inherits(cls, "typing.Protocol", "typing.TypedDict", "BaseException") or any(
        "Exception" in c.path for c in index.mro(cls)
    ):
        return True
    return "__reduce__" in cls.obj.members or (
        "abc.ABC" in {c.path for c in index.mro(cls)} and not is_dataclass(index, cls)
    )
