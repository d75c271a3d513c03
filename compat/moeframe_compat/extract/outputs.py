"""What a function hands to the outside of Python: hooks it calls, exit codes, JSON it prints."""

from __future__ import annotations

import ast

from moeframe_compat.extract.names import dotted
from moeframe_compat.model.objects import Body

_EXITS = ("sys.exit", "exit", "quit", "os._exit", "ctx.exit", "context.exit", "parser.exit", "SystemExit")
_JSON = ("json.dumps", "json.dump", "print_json", "console.print_json", "typer.echo_json", "orjson.dumps")


class Outputs:
    """Collects them from the nodes of one body, in order."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self._dicts: dict[str, list[str]] = {}

    def call(self, node: ast.Call, name: str) -> None:
        """A call of anything."""
        parts = name.split(".")
        if len(parts) > 1 and parts[-2] in ("hook", "hooks"):
            self.body.hook_calls.append(f"{parts[-1]}({', '.join(_argument(k) for k in node.keywords)})")
        elif name == "getattr" and node.args and (dotted(node.args[0]) or "").rpartition(".")[2] in ("hook", "hooks"):
            self.body.hook_calls.append("*")
        if name in _EXITS:
            self._exit(node)
        elif name in _JSON and node.args:
            self._keys(node.args[0])

    def raised(self, node: ast.expr) -> None:
        """`raise typer.Exit(code=2)` and its like; `SystemExit` counts as a call."""
        if isinstance(node, ast.Call) and (dotted(node.func) or "").rpartition(".")[2] == "Exit":
            self._exit(node)

    def assigned(self, target: ast.expr, value: ast.expr | None) -> None:
        """An object that may be printed later."""
        if isinstance(target, ast.Name) and isinstance(value, ast.Dict):
            self._dicts[target.id] = _literal_keys(value)
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            name = dotted(target.value)
            if name in self._dicts:
                self._dicts[name].append(str(target.slice.value))

    def _exit(self, node: ast.Call) -> None:
        given = [*node.args[:1], *(k.value for k in node.keywords if k.arg in ("code", "status"))]
        if given:
            code = ast.unparse(given[0])
            if code not in self.body.exits:
                self.body.exits.append(code)

    def _keys(self, node: ast.expr) -> None:
        keys = _literal_keys(node) if isinstance(node, ast.Dict) else []
        if isinstance(node, ast.Name):
            keys = self._dicts.get(node.id, [])
        self.body.printed += [k for k in keys if k not in self.body.printed]


def _literal_keys(node: ast.Dict) -> list[str]:
    return [str(k.value) for k in node.keys if isinstance(k, ast.Constant)]


def _argument(k: ast.keyword) -> str:
    none = isinstance(k.value, ast.Constant) and k.value.value is None
    return f"{k.arg}=None" if none else str(k.arg)
