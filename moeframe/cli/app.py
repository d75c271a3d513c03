"""The commands and their arguments. Each body imports its implementation, so that no command pays for another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from moeframe.errors import UserInputError

__all__ = ["app"]

app = typer.Typer(
    name="moeframe",
    help="""Train Mixture-of-Experts models from one YAML recipe.

\b
  moeframe check recipes/quickstart.yaml
  moeframe run recipes/quickstart.yaml train.steps=50 dispatcher.name=allgather
  moeframe run recipes/quickstart.yaml --resume

Every command that takes a recipe takes KEY=VALUE too. `moeframe COMMAND --help` says more; docs/keys.md names every
key, docs/errors.md explains what is refused.

Exit code: 0 good, 1 failed or something was found, 2 refused, 3 could not be checked, 128 + n ended by signal n.
""",
    context_settings={"help_option_names": ["--help", "-h"]},
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _file(text: str) -> Path:
    """Return the path that an argument says; empty, it is most often a shell variable that is not set."""
    if not text:
        raise UserInputError("the name of a recipe file is empty. Name a YAML file.")
    return Path(text)


RecipeArgument = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="A recipe, which is a YAML file.", show_default=False, parser=_file)
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE...", help="Values that win over the file's, such as train.steps=50.", show_default=False
    ),
]
PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="Also take what this module offers, which no distribution installed. May be repeated; "
        "MOEFRAME_PLUGINS=A,B does the same.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document in place of text.")]


def _version(wanted: bool) -> None:  # noqa: FBT001  typer calls it so
    if wanted:
        from moeframe import __version__

        typer.echo(f"moeframe {__version__}")
        raise typer.Exit


@app.callback()
def _global(
    context: typer.Context,
    plugin: PluginOption = None,
    *,
    version: Annotated[  # noqa: ARG001  its callback does the work
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before the command."""
    context.obj = tuple(plugin or ())


@app.command("run")
def _run(
    context: typer.Context,
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    plugin: PluginOption = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="[RUN_DIR]",
            help="Go on from the last whole checkpoint of a run; without RUN_DIR, or with latest: of the newest one of "
            "this recipe. Without --resume a new run starts.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check a recipe, start its processes, train.

    Under torchrun or Slurm it joins the processes that they started. Ctrl-C saves a checkpoint and ends.

    Exit code: 0 trained, 1 the job failed, 2 refused before the first step, 128 + n ended by signal n after saving.
    """
    from moeframe.cli.run import run

    if resume == "":
        raise UserInputError("--resume= names no run directory. Use --resume alone for the newest run, or name one.")
    raise typer.Exit(run(recipe, overrides or [], _plugins(context, plugin), resume))


@app.command("check")
def _check(
    context: typer.Context, recipe: RecipeArgument, overrides: OverridesArgument = None, plugin: PluginOption = None
) -> None:
    """Check a recipe without running it; needs no GPU.

    Every problem is told at once, and what this machine lacks is one. `moeframe plan` checks a recipe for another
    machine.

    Exit code: 0 good, 2 refused.
    """
    from moeframe.cli.check import check
    from moeframe.cli.wrapping import for_reader

    typer.echo(for_reader(check(recipe, overrides or [], _plugins(context, plugin)), sys.stdout))


@app.command("plan")
def _plan(
    context: typer.Context,
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    plugin: PluginOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Show how a job lies on its ranks and what each holds.

    It checks the recipe for any machine: it needs no GPU and none of the libraries that backends need.

    Exit code: 0 good, 2 refused.
    """
    from moeframe.cli.plan import plan

    typer.echo(plan(recipe, overrides or [], _plugins(context, plugin), as_json=as_json))


@app.command("explain")
def _explain(
    context: typer.Context,
    recipe: RecipeArgument,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY|KEY=VALUE...",
            help="One key or section to explain, all of them without it; with '=', values that win over the file's.",
            show_default=False,
        ),
    ] = None,
    plugin: PluginOption = None,
) -> None:
    """Show every value of a recipe and where it came from.

    Exit code: 0 good, 2 refused; a recipe of which every value has its type is shown all the same.
    """
    from moeframe.cli.explain import explain_recipe

    text, refusal = explain_recipe(recipe, arguments or [], _plugins(context, plugin))
    typer.echo(text)
    if refusal is not None:
        raise refusal


@app.command("verify")
def _verify(
    context: typer.Context,
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    plugin: PluginOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Prove that a recipe computes what one process does.

    The layout is the recipe's, the model is small; on the CPU, in float64.

    Exit code: 0 proved, 1 different, 2 refused, 3 not everything could be run.
    """
    from moeframe.cli.verify import verify_recipe

    raise typer.Exit(verify_recipe(recipe, overrides or [], _plugins(context, plugin), as_json=as_json))


@app.command("doctor")
def _doctor(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="runs/<recipe name>/<time>-<id>.", show_default=False)
    ],
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the job ends or something is wrong.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say which rank of a run is stuck or failed, and why.

    Where, and since when, too; on any machine that sees the run directory, while the job lives or after.

    Exit code: 0 nothing is wrong, 1 something is, 2 that is no run directory.
    """
    from moeframe.cli.doctor import doctor

    raise typer.Exit(doctor(run_dir, follow=follow, as_json=as_json))


@app.command("migrate")
def _migrate(
    recipes: Annotated[
        list[Path], typer.Argument(metavar="RECIPE...", help="Recipe files.", show_default=False, parser=_file)
    ],
    *,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 if there are old keys.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show the changes instead of making them.")] = False,
) -> None:
    """Rewrite old keys in place; nothing else of a file changes.

    Exit code: 0 no old key is left, 1 some are, 2 a file is no recipe or cannot be written.
    """
    from moeframe.cli.migrate import migrate

    raise typer.Exit(migrate(recipes, check=check, diff=diff))


_plugins_app = typer.Typer(no_args_is_help=False, rich_markup_mode=None)
app.add_typer(_plugins_app, name="plugins")


@_plugins_app.callback(invoke_without_command=True)
def _list_plugins(context: typer.Context, plugin: PluginOption = None, *, as_json: JsonOption = False) -> None:
    """List what is offered, by whom, and whether it can be used here."""
    context.obj = tuple(_plugins(context, plugin))
    if context.invoked_subcommand is not None:
        return
    from moeframe.cli.plugins import plugins

    plugins(context.obj, as_json=as_json)


@_plugins_app.command("test")
def _test_plugin(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A backend, as `plugins` lists it.", show_default=False)],
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="dispatcher, sharding, schedule or compute; only needed where several kinds have the name.",
            show_default=False,
        ),
    ] = None,
    plugin: PluginOption = None,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Print every failure, not only the first of those that are alike.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the conformance kit of a backend's kind on it.

    What failed is summed up by causes at the end.

    Exit code: 0 every check is good, 1 one failed, 2 refused, 3 none could be run.
    """
    from moeframe.cli.conformance import conformance

    raise typer.Exit(conformance(name, kind, _plugins(context, plugin), every=every, as_json=as_json))


_bench_app = typer.Typer(help="Time a recipe on this machine's GPUs.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(_bench_app, name="bench")


@_bench_app.command("overlap")
def _bench_overlap(
    context: typer.Context,
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    plugin: PluginOption = None,
    *,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where overlap.json and the pictures go.")] = Path(
        "bench"
    ),
    rounds: Annotated[int, typer.Option(metavar="N", help="Timed steps of each schedule, in turn.")] = 5,
    slow: Annotated[
        float, typer.Option(metavar="US", help="Make every exchange so many microseconds longer, and say so.")
    ] = 0.0,
) -> None:
    """Measure how much communication a schedule hides.

    Its steps are timed in turn with those of a schedule without overlap, on as many GPUs as the recipe has processes;
    what it costs in memory is told too.

    Exit code: 0 measured, 1 a rank failed, 2 refused.
    """
    from moeframe.cli.bench import bench_overlap

    bench_overlap(recipe, overrides or [], _plugins(context, plugin), out=out, rounds=rounds, slow_us=slow)


@app.command("tokenize")
def _tokenize(  # noqa: PLR0913  one for each option of the command
    context: typer.Context,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Text files, a document each, or .jsonl files, a document a line; glob patterns too.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="NAME", help="Writes NAME.json and what it describes.", show_default=False)
    ],
    tokenizer: Annotated[
        str, typer.Option(metavar="byte|FILE", help="The bytes of the text, or a Hugging Face tokenizer.json.")
    ] = "byte",
    field: Annotated[str, typer.Option(metavar="KEY", help="Where a .jsonl line has its text.")] = "text",
    document_separator: Annotated[
        str,
        typer.Option(
            metavar="TOKEN|ID|none|auto", help="What ends each document; auto is 0 with byte, refused otherwise."
        ),
    ] = "auto",
    plugin: PluginOption = None,
    *,
    replace_errors: Annotated[
        bool,
        typer.Option("--replace-errors", help="Put U+FFFD for bytes that are not UTF-8, in place of refusing them."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there already.")] = False,
    data_set: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which data set shall read it; only needed where several read such files.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write texts as tokens on disk, once for many runs.

    Exit code: 0 written, 1 the disk is full, 2 refused.
    """
    from moeframe.cli.tokenize import separator_of, tokenize
    from moeframe.protocols.data import TokenizeRequest

    request = TokenizeRequest(
        inputs=tuple(inputs),
        out=out,
        tokenizer=tokenizer,
        field=field,
        document_separator=separator_of(document_separator),
        errors="replace" if replace_errors else "strict",
        overwrite=force,
    )
    typer.echo(tokenize(request, data_set=data_set, plugins=_plugins(context, plugin)))


def _plugins(context: typer.Context, named: list[str] | None) -> list[str]:
    """Return the plugin modules named before and after the command."""
    return [*context.obj, *(named or ())]
