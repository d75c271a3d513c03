"""Runs in a process of its own, isolated: imports modules of one release and describes them. Standard library only."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import inspect
import json
import socket
import sys
import types
from collections.abc import Sequence
from typing import Any

HEAVY = frozenset(
    {
        "torch",
        "torchvision",
        "triton",
        "transformer_engine",
        "transformer_engine_torch",
        "apex",
        "deep_ep",
        "flash_attn",
        "tensorflow",
        "jax",
        "jaxlib",
        "cupy",
        "numba",
        "scipy",
        "pandas",
        "transformers",
        "datasets",
        "tensorrt",
        "wandb",
        "megatron",
        "deepspeed",
        "lightning",
        "mamba_ssm",
        "causal_conv1d",
        "nvidia_modelopt",
        "modelopt",
    }
)


class _Stub(types.ModuleType):
    """Stands in for a heavy module: any attribute is a class that can be subclassed, called and decorated with."""

    __path__: list[str] = []  # noqa: RUF012 - a module attribute by protocol
    __file__ = "stub.py"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _made(name, self.__name__)
        setattr(self, name, made)
        return made


class _StubMeta(type):
    """Classes whose every attribute is another stub."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _made(name, cls.__module__)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]  # used as a decorator
        return super().__call__()

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


def _made(name: str, home: str) -> type:
    return _StubMeta(name, (), {"__module__": home, "__call__": _decorate})


def _decorate(_: Any, *args: Any, **__: Any) -> Any:
    """Instances are decorators (`@no_grad()`) that change nothing."""
    return args[0] if args else None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stubs heavy modules always, and modules outside the package that are not installed."""

    def __init__(self, package: str) -> None:
        self.package = package.partition(".")[0]

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:  # noqa: ARG002
        top = name.partition(".")[0]
        if top == self.package or top not in HEAVY:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def stub_heavy_modules(package: str = "") -> None:
    """Stub them for every import from here on, except within a package."""
    sys.meta_path.insert(0, _Finder(package))


def _no_network(*_: Any, **__: Any) -> None:
    raise OSError("the probe has no network")


def _names(path: str) -> dict[str, Any]:
    module = importlib.import_module(path)
    names = sorted(
        n for n in vars(module) if not n.startswith("_") and not isinstance(vars(module)[n], types.ModuleType)
    )
    own = [n for n in names if _ours(vars(module)[n], path)]
    listed = getattr(module, "__all__", None)
    return {"names": own, "all": None if listed is None else [str(n) for n in listed]}


def _ours(value: Any, path: str) -> bool:
    home = getattr(value, "__module__", None)
    return home is None or str(home).partition(".")[0] == path.partition(".")[0]


def _options(path: str) -> dict[str, Any]:
    import argparse

    module = importlib.import_module(path)
    rows: list[dict[str, Any]] = []
    for name, value in sorted(vars(module).items()):
        if isinstance(value, argparse.ArgumentParser):
            _parser(value, "", rows)
        elif inspect.isfunction(value) and "parser" in name and value.__module__ == module.__name__:
            needed = [
                p
                for p in inspect.signature(value).parameters.values()
                if p.default is p.empty and p.kind < p.VAR_POSITIONAL
            ]
            if not needed:
                made = value()
                if isinstance(made, argparse.ArgumentParser):
                    _parser(made, "", rows)
    if not rows:
        raise LookupError("no parser found: give the module a function without parameters whose name holds 'parser'")
    return {"options": rows}


def _parser(parser: Any, name: str, rows: list[dict[str, Any]]) -> None:
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list
        if type(action).__name__ == "_SubParsersAction":
            for inner, made in action.choices.items():
                _parser(made, f"{name} {inner}".strip(), rows)
        elif type(action).__name__ != "_HelpAction":
            kind = {
                "_StoreTrueAction": "store_true",
                "_StoreFalseAction": "store_false",
                "_AppendAction": "append",
                "_CountAction": "count",
            }.get(type(action).__name__, "")
            rows.append(
                {
                    "parser": name,
                    "flags": list(action.option_strings) or [action.dest],
                    "dest": action.dest,
                    "action": kind,
                    "type": getattr(action.type, "__name__", "") if action.type else "",
                    "default": None if action.default is None else repr(action.default),
                    "choices": None if action.choices is None else [repr(c) for c in action.choices],
                    "nargs": "" if action.nargs in (None, 0) else str(action.nargs),
                    "required": bool(action.required),
                    "positional": not action.option_strings,
                }
            )


def main() -> None:
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.read())
    sys.path.insert(0, request["path"])
    stub_heavy_modules(request["package"])
    socket.socket.connect = _no_network  # type: ignore[method-assign]
    answers: dict[str, Any] = {}
    for kind, ask in (("names", _names), ("options", _options)):
        for path in request[kind]:
            try:
                answers[f"{kind} {path}"] = ask(path)
            except BaseException as e:  # noqa: BLE001 - whatever an import raises, SystemExit too, is the answer
                answers[f"{kind} {path}"] = {
                    "error": f"{type(e).__name__}: {str(e)[:200]}".replace(request["path"], "")
                }
    sys.stdout.write("\n@answers " + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
