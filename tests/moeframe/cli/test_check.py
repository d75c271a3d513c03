from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from moeframe.cli import error_text, main, with_resume_value
from moeframe.errors import MoeframeError, Problem, RecipeError
from moeframe.hooks import needs

ROOT = Path(__file__).parents[3]
TINY = "recipes/deepseek_v3/tiny.yaml"


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("MOEFRAME_PLUGINS", raising=False)


@pytest.fixture
def moeframe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs a command: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["moeframe", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        code = caught.value.code
        assert code is None or isinstance(code, int)
        streams = capsys.readouterr()
        return code or 0, streams.out, streams.err

    return run


def test_a_good_recipe_is_good_and_shows_what_it_composes_to(moeframe) -> None:
    code, out, err = moeframe("check", TINY, "train.steps=5")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"{TINY}: good"
    shown = dict(line.split(maxsplit=1) for line in lines[1:])
    assert list(shown) == ["dispatcher", "sharding", "schedule", "compute", "data", "layout", "batch", "model"]
    assert shown["dispatcher"].startswith("local: ")
    assert shown["layout"] == "1 process (one node) = pp 1 x dp_replicate 1 x dp_shard 1; ep 1 x edp 1"
    assert shown["model"].startswith("deepseek_v3, float32, ")


def test_options_that_are_not_at_their_default_are_shown(moeframe) -> None:
    _, out, _ = moeframe("check", TINY, "dispatcher.options.validate=true")
    assert "dispatcher  local {validate: true}: " in out


def test_problems_go_to_stderr_one_a_line_with_exit_code_2(moeframe) -> None:
    code, out, err = moeframe("check", TINY, "train.stepz=5", "parallel.ep=3", "dispatcher.name=locale", "foo")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "error: 4 problems",
        "  foo: the argument 'foo' has no '='. An override is key=value, such as train.steps=50.",
        "  train.stepz=5: train.stepz: unknown key 'stepz'. Did you mean 'steps'?",
        "  parallel.ep=3: parallel.ep: 3 does not divide both the 1 data ranks of one replica (world 1 / pp 1 / "
        "dp_replicate 1) and the 8 experts. Legal: 1. With more processes (launch.nproc_per_node, "
        "launch.nnodes) any divisor of the experts: 1, 2, 4, 8.",
        "  dispatcher.name=locale: dispatcher.name: 'locale': no installed plugin offers it. Offered: allgather, "
        "alltoall, deepep, hybridep, local. Did you mean 'local'?",
    ]


def test_brackets_of_a_message_are_printed_as_they_are(moeframe) -> None:
    _, _, err = moeframe("check", TINY, "optimizer.betas=0.9,0.95")
    assert "Put it in brackets: [0.9,0.95]." in err


def test_a_missing_recipe_is_one_line(moeframe) -> None:
    code, _, err = moeframe("check", "recipes/quikstart.yaml")
    assert code == 2
    assert err == "error: recipes/quikstart.yaml: no such file. Did you mean recipes/quickstart.yaml?\n"


@pytest.mark.parametrize("arguments", [("check",), ("chek", TINY), ("check", TINY, "--no-such-option"), ()])
def test_wrong_usage_ends_with_2(moeframe, arguments) -> None:
    code, _, err = moeframe(*arguments)
    assert code == 2
    assert "Traceback" not in err


@pytest.mark.parametrize("before", [True, False])
def test_a_plugin_that_is_not_installed_is_named_before_or_after_the_command(
    moeframe, tmp_path, monkeypatch, before
) -> None:
    (tmp_path / "refusing_plugin.py").write_text(
        "from moeframe.errors import Problem\n"
        "from moeframe.hooks import hookimpl\n"
        "@hookimpl\n"
        "def moeframe_check_recipe(recipe):\n"
        "    return [Problem(path='train.seed', message='given 0; refused.', fix='Raise it.')]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    named = ("--plugin", "refusing_plugin")
    code, _, err = moeframe(*(*named, "check", TINY) if before else ("check", TINY, *named))
    assert code == 2
    assert "train.seed: given 0; refused. Raise it." in err
    monkeypatch.setenv("MOEFRAME_PLUGINS", "refusing_plugin")
    assert moeframe("check", TINY)[0] == 2


def test_a_plugin_module_that_does_not_exist_is_refused(moeframe) -> None:
    code, _, err = moeframe("check", TINY, "--plugin", "no_such_plugin_module")
    assert code == 2
    assert "no_such_plugin_module" in err
    assert "Traceback" not in err


def test_the_version_and_the_help_are_short_ways_out(moeframe) -> None:
    code, out, _ = moeframe("--version")
    assert code == 0
    assert out.startswith("moeframe 0.")
    code, out, _ = moeframe("--help")
    assert code == 0
    for command in ("run", "check", "explain", "plugins"):
        assert f"\n  {command} " in out


def test_an_error_knows_its_text() -> None:
    one, two = (Problem(path=path, message="m.", fix="f.") for path in ("a", "b"))
    assert error_text(RecipeError([one])) == "error: a: m. f."
    assert error_text(RecipeError([one, two])) == "error: 2 problems\n  a: m. f.\n  b: m. f."
    assert error_text(MoeframeError("boom [x]")) == "error: boom [x]"


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_c133_check_explain_and_plugins_need_no_gpu_and_import_no_torch() -> None:
    for arguments in (["check", TINY], ["explain", TINY], ["plugins"], ["--help"]):
        done = _run("-X", "importtime", "-m", "moeframe", *arguments, CUDA_VISIBLE_DEVICES="")
        assert done.returncode == 0, done.stderr
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line}
        assert "moeframe.cli.app" in imported
        assert not imported & {"torch", "numpy", "safetensors"}


def test_help_imports_no_plugin() -> None:
    done = _run("-X", "importtime", "-m", "moeframe", "--help")
    assert not [line for line in done.stderr.splitlines() if "_collectives" in line or "_datasets" in line]


def test_check_answers_in_half_a_second() -> None:
    """Processor time, the best of several runs: on an idle machine that is the time the user waits."""
    took = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = _run("-m", "moeframe", "check", "recipes/quickstart.yaml")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0, done.stderr
    assert min(took) < 0.5


def test_an_empty_name_is_said_to_be_empty(moeframe) -> None:
    for command in ("check", "explain", "run", "verify", "migrate"):
        code, _, err = moeframe(command, "")
        assert (code, err) == (2, "error: the name of a recipe file is empty. Name a YAML file.\n")


@pytest.mark.parametrize("name", ["", "../x", "a b", "x.py/"])
def test_a_plugin_that_is_no_module_name_is_said_so(moeframe, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    code, _, err = moeframe("check", TINY, "--plugin", name)
    assert (code, f"{name!r} is no name of a module." in err) == (2, True)
    if name:
        monkeypatch.setenv("MOEFRAME_PLUGINS", name)
        code, _, err = moeframe("check", TINY)
        assert (code, f"{name!r} is no name of a module." in err) == (2, True)


def test_output_that_cannot_be_written_is_an_error_without_a_traceback() -> None:
    command = f"{sys.executable} -m moeframe check {TINY}"
    full = subprocess.run(["bash", "-c", f"{command} > /dev/full"], capture_output=True, text=True, check=False)
    assert full.returncode == 1
    assert full.stderr.startswith("error: standard output cannot be written: No space left on device.")
    assert len(full.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("run r.yaml --resume", "run r.yaml --resume latest"),
        ("run --resume r.yaml a=1", "run --resume latest r.yaml a=1"),
        ("run r.yaml --resume runs/x a=1", "run r.yaml --resume runs/x a=1"),
        ("run r.yaml --resume a=1", "run r.yaml --resume latest a=1"),
        ("run --resume --plugin p r.yaml", "run --resume latest --plugin p r.yaml"),
        ("run --resume -- r.yaml", "run --resume latest -- r.yaml"),
        ("run -- r.yaml --resume", "run -- r.yaml --resume"),
        ("run r.yaml --resume=runs/x", "run r.yaml --resume=runs/x"),
        ("run r.yaml --resume=", "run r.yaml --resume="),
    ],
)
def test_resume_without_a_directory_means_the_latest(given: str, found: str) -> None:
    assert with_resume_value(given.split()) == found.split()


def test_an_empty_directory_to_resume_from_is_refused(moeframe) -> None:
    code, _, err = moeframe("run", TINY, "--resume=")
    assert (code, err.startswith("error: --resume= names no run directory.")) == (2, True)


def test_a_recipe_that_demands_gpus_is_good_without_one_but_not_run(
    moeframe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(needs, "_driver_files", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    missing = "this machine has no CUDA device (no /dev/nvidia0). Run it on a machine with one."
    recipe = "recipes/deepseek_v3/proxy_2gpu.yaml"
    code, out, _ = moeframe("check", recipe)
    assert code == 0
    assert out.startswith(f"{recipe}: good\n")
    (note,) = (line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("  note"))
    assert note == f"needs 2 GPUs; {missing}"
    code, out, err = moeframe("run", recipe, f"train.output_dir={tmp_path / 'runs'}")
    assert (code, out) == (2, "")
    assert f"launch.device is 'cuda', but {missing} Or use launch.device=cpu." in err
    assert not (tmp_path / "runs").exists()
    assert "needs 2 GPUs" not in moeframe("check", recipe, "launch.device=auto")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["check", TINY, "--train.steps=5"],
            "--train.steps=5: an override has no dashes before it. Write train.steps=5.",
        ),
        (
            ["check", "train.steps=5", TINY],
            "train.steps=5: no such file. The recipe file stands first, overrides behind",
        ),
        (["check", TINY, TINY], f"the argument {TINY!r} has no '='. One recipe at a time, and before its overrides."),
        (["check", "quickstart"], "quickstart: no such file. Did you mean recipes/quickstart.yaml?"),
        (["check", "tiny.yaml"], "tiny.yaml: no such file. Did you mean recipes/deepseek_v3/tiny.yaml?"),
        (["check", TINY, "dispatcher=alltoall"], "on the command line dispatcher.name=alltoall."),
        (
            ["check", TINY, "sharding.name=alltoall"],
            "There is one of that name of another kind: dispatcher.name=alltoall.",
        ),
        (["check", TINY, "parallel.ep=3"], "any divisor of the experts: 1, 2, 4, 8."),
        (["plugins", "test", "alltoal"], "Did you mean 'alltoall'?"),
        (["doctor", "nowhere"], "nowhere is no run directory: there is no such folder."),
        (["doctor", TINY], f"{TINY} is no run directory: it is a file."),
    ],
)
def test_what_newcomers_type_is_answered_with_what_to_type(moeframe, arguments, words) -> None:
    code, out, err = moeframe(*arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_dashes_are_for_options_and_behind_two_of_them_nothing_is_one(moeframe) -> None:
    code, _, err = moeframe("check", TINY, "--", "--train.steps=5")
    assert (code, "unknown key" in err or "no dotted key" in err) == (2, True)


@pytest.mark.parametrize("key", ["train.steps", "data.options.seed", "optimizer.lr", "name", "dispatcher.name"])
def test_a_value_of_any_length_is_refused_in_a_few_words(moeframe, key: str) -> None:
    code, _, err = moeframe("check", TINY, "data.name=synthetic", f"{key}={'9' * 5000}")
    assert code == 2
    assert len(err) < 1000
    assert "[...5,0" in err


def test_a_warning_has_the_word_before_it() -> None:
    command = [sys.executable, "-m", "moeframe", "check", TINY, "train.steps=3", "train.steps=4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "warning: the override train.steps=3 has no effect: train.steps=4 comes later\n"


@pytest.mark.parametrize("command", [[], ["run"], ["plugins"], ["plugins", "test"], ["bench"], ["bench", "overlap"]])
def test_help_has_a_short_form_and_names_the_exit_codes(moeframe, command) -> None:
    assert moeframe(*command, "-h") == moeframe(*command, "--help")
    code, out, _ = moeframe(*command, "-h")
    assert code == 0
    listing = out.partition("Commands:")[2]
    assert "..." not in listing  # every command is described to the end
    if command not in (["plugins"], ["bench"]):
        assert "Exit code" in out


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-", "<&-"])
@pytest.mark.parametrize(("recipe", "code"), [(TINY, 0), ("nowhere.yaml", 2)])
def test_streams_that_are_closed_change_no_exit_code(redirection: str, recipe: str, code: int) -> None:
    line = f"exec {sys.executable} -m moeframe check {recipe} {redirection}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_a_working_directory_that_was_removed_is_told(
    moeframe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, _, err = moeframe("check", "x.yaml")
    assert code == 2
    assert err == (
        "error: the working directory cannot be used: No such file or directory. Change to one that is there.\n"
    )
