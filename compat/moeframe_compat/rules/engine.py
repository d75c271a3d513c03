"""Runs every rule over two releases."""

from __future__ import annotations

from moeframe_compat.interpret.forwarding import Forwarding
from moeframe_compat.interpret.shims import Shims
from moeframe_compat.model.objects import Function
from moeframe_compat.rules.causes import merge_causes
from moeframe_compat.rules.checkpoint import check_checkpoints
from moeframe_compat.rules.cli import check_cli
from moeframe_compat.rules.cli_outputs import check_outputs
from moeframe_compat.rules.config import check_validation
from moeframe_compat.rules.context import Context
from moeframe_compat.rules.environment import check_environment
from moeframe_compat.rules.exports import check_exports, check_modules, counterpart, further_counterparts
from moeframe_compat.rules.hooks import check_hooks
from moeframe_compat.rules.loaded import check_loaded
from moeframe_compat.rules.migrations import check_migrations
from moeframe_compat.rules.objects import compare
from moeframe_compat.rules.plugins import check_api_version, check_plugins
from moeframe_compat.rules.project import check_project
from moeframe_compat.rules.protocols import check_callbacks
from moeframe_compat.rules.recipes import check_recipes
from moeframe_compat.rules.saved_configs import check_saved_configs


def run_rules(ctx: Context) -> None:
    """Fill `ctx.findings`."""
    shims = Shims(ctx)
    hooks = check_hooks(ctx)
    ctx.scratch["hooks"] = hooks
    gone = check_modules(ctx)
    for path, entry in sorted(ctx.old_surface.items()):
        if path in hooks:
            continue
        ctx.within(entry.found)
        new = counterpart(ctx, entry, gone, shims)
        if new is None or new.obj is None:
            continue
        for name, found in ((entry.path, new), *further_counterparts(ctx, entry, new, shims)):
            compare(ctx, name, entry.found, found, shims)
            Forwarding(ctx, shims).check(name, entry.found, found)
            if isinstance(entry.found.obj, Function) and isinstance(found.obj, Function):
                check_callbacks(ctx, name, entry.found, found)
    ctx.outside()
    check_exports(ctx, gone)
    check_loaded(ctx, gone)
    ctx.outside()
    check_validation(ctx)
    check_recipes(ctx)
    check_cli(ctx)
    check_outputs(ctx)
    check_environment(ctx)
    check_plugins(ctx, shims)
    check_project(ctx)
    check_checkpoints(ctx, shims)
    check_saved_configs(ctx)
    check_migrations(ctx)
    check_api_version(ctx)
    merge_causes(ctx.findings)
    ctx.findings.sort(key=lambda f: (f.rule, f.symbol, f.file, f.line))
