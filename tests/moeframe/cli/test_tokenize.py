from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from moeframe.cli import main
from moeframe.cli.tokenize import separator_of, tokenize
from moeframe.errors import UserInputError
from moeframe.protocols.data import TokenizeRequest

TINY = Path(__file__).parents[3] / "recipes" / "deepseek_v3" / "tiny.yaml"
OTHER = """
from pathlib import Path
from moeframe.hooks import DatasetOffer, hookimpl
from moeframe.protocols.data import Tokenized

def write(request):
    request.out.write_text(repr(request.inputs))
    return Tokenized(files=(request.out,), documents=1, tokens=2, vocabulary=3, options={"where": str(request.out)})

@hookimpl
def moeframe_offer_datasets():
    return [DatasetOffer(name="other", summary="Other files.", build=print, traits=print, tokenize=write)]
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOEFRAME_PLUGINS", raising=False)
    Path("a.txt").write_text("one two")
    Path("b.txt").write_text("three")
    Path("c.jsonl").write_text('{"body": "four"}\n{"body": "five"}\n')


@pytest.fixture
def moeframe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs a command: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["moeframe", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        streams = capsys.readouterr()
        return int(caught.value.code or 0), streams.out, streams.err

    return run


def test_texts_become_tokens_and_the_answer_is_a_recipe(moeframe) -> None:
    code, out, err = moeframe("tokenize", "*.txt", "c.jsonl", "--field", "body", "--out", "made/tokens")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "24 tokens in 4 document(s), vocabulary 256",
        "  files:  made/tokens.json, made/tokens.bin, made/tokens.docs.bin",
        "  recipe: data: {name: token_file, options: {path: made/tokens}}",
    ]
    overrides = ("data.name=token_file", "data.options={path: made/tokens, validation_fraction: 0.5}")
    code, out, err = moeframe("check", str(TINY), *overrides)
    assert (code, err) == (0, "")
    assert "validation_fraction: 0.5}: tokens that" in out


def test_c136_tokens_beyond_the_vocabulary_are_refused_by_check_with_both_numbers(moeframe) -> None:
    ids = {f"t{number}": number for number in range(102_400)}
    Path("t.json").write_text(json.dumps({"model": {"type": "WordLevel", "vocab": ids}}))
    options = "data.options={files: [a.txt], tokenizer: t.json, document_separator: null, validation_fraction: 0.5}"
    code, out, err = moeframe("check", str(TINY), "data.name=text", options, "model.vocab_size=100")
    assert (code, out) == (2, "")
    assert err == (
        "error: model.vocab_size=100: model.vocab_size: given 100; data set 'text' has 102400 distinct tokens. "
        "Use model.vocab_size=102400 or more; or data.name=synthetic.\n"
    )
    moeframe("tokenize", "a.txt", "--out", "tokens")
    options = "data.options={path: tokens, validation_fraction: 0.5}"
    code, _, err = moeframe("check", str(TINY), "data.name=token_file", options, "model.vocab_size=100")
    assert code == 2
    assert "given 100; data set 'token_file' has 256 distinct tokens." in err


def test_check_names_the_place_of_a_refused_option(moeframe) -> None:
    Path("r.yaml").write_text(f"extends: [{TINY}]\ndata:\n  name: text\n  options:\n    files: [a.txt, gone/*.txt]\n")
    code, _, err = moeframe("check", "r.yaml")
    assert code == 2
    assert err.startswith(f"error: r.yaml:5:20: data.options.files.1: {Path.cwd()}/gone/*.txt matches no file.")


def test_validation_needs_something_held_out(moeframe) -> None:
    arguments = ("check", str(TINY), "data.name=text", "data.options={files: [a.txt]}")
    code, _, err = moeframe(*arguments, "train.eval_every=5")
    assert code == 2
    assert "train.eval_every: given 5; data set 'text' with these options holds out nothing to validate." in err
    assert moeframe(*arguments, "train.eval_every=0")[0] == 0


@pytest.mark.parametrize(("arguments", "message"), [
    (["gone.txt"], "error: gone.txt matches no file."),
    (["c.jsonl"], "error: c.jsonl:1: the line has no field 'text'; its fields: 'body'."),
    (["a.txt", "--tokenizer", "gone.json"], "error: gone.json cannot be read (No such file or directory)."),
    (["a.txt", "--document-separator", "<eos>"], "error: '<eos>' is no token of `byte`."),
    (["a.txt", "--data-set", "synthetic"], "error: --data-set synthetic: it reads nothing that"),
    (["a.txt", "--data-set", "token_fil"], "error: data.name = 'token_fil': no installed plugin offers it."),
])  # fmt: skip
def test_bad_input_ends_with_exit_code_2_and_no_file(moeframe, arguments: list[str], message: str) -> None:
    code, out, err = moeframe("tokenize", *arguments, "--out", "tokens")
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert not list(Path().glob("tokens*"))


def test_bytes_that_are_no_text_are_refused_or_replaced(moeframe) -> None:
    Path("bad.txt").write_bytes(b"x\xff")
    code, _, err = moeframe("tokenize", "bad.txt", "--out", "tokens")
    assert code == 2
    assert err.startswith("error: bad.txt: byte 1 (0xff) is not UTF-8")
    code, out, _ = moeframe("tokenize", "bad.txt", "--out", "tokens", "--replace-errors")
    assert code == 0
    assert out.startswith("5 tokens in 1 document(s)")


def test_files_are_replaced_with_force_only(moeframe) -> None:
    assert moeframe("tokenize", "a.txt", "--out", "tokens")[0] == 0
    code, _, err = moeframe("tokenize", "b.txt", "--out", "tokens")
    assert (code, err) == (
        2,
        "error: tokens.json is there already. Use --force to replace it, or another --out NAME.\n",
    )
    code, out, _ = moeframe("tokenize", "b.txt", "--out", "tokens", "--force")
    assert (code, out.split(" ")[0]) == (0, "6")


def test_the_separator_is_an_id_a_token_or_none() -> None:
    assert [separator_of(text) for text in ("7", "none", "auto", "<end>", "-1", "²")] == [
        7, None, "auto", "<end>", "-1", "²"
    ]  # fmt: skip


def test_of_several_data_sets_that_read_tokens_one_must_be_named(tmp_path: Path, monkeypatch) -> None:
    Path("other_tokens_plugin.py").write_text(OTHER)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    request = TokenizeRequest(inputs=("a.txt",), out=Path("out"), tokenizer="byte")
    with pytest.raises(UserInputError, match=r"more than one data set reads tokens from files: other, token_file\."):
        tokenize(request, data_set=None, plugins=["other_tokens_plugin"])
    said = tokenize(request, data_set="other", plugins=["other_tokens_plugin"])
    assert said.splitlines()[-1] == "  recipe: data: {name: other, options: {where: out}}"
    assert Path("out").read_text() == "('a.txt',)"


def test_neither_tokenize_nor_check_imports_torch() -> None:
    program = (
        "import sys\n"
        "from moeframe.cli import main\n"
        "for arguments in (['tokenize', 'a.txt', '--out', 'tokens'], ['check', sys.argv[1], 'data.name=token_file',\n"
        "                  'data.options={path: tokens, validation_fraction: 0.5}']):\n"
        "    sys.argv = ['moeframe', *arguments]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, end.code\n"
        "    assert 'torch' not in sys.modules\n"
    ).replace("sys.argv[1]", repr(str(TINY)))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["", "--out", "t"], "error: the name of an input is empty."),
        (["a.txt", "--out", ""], "error: --out '.' names no file."),
        (["a.txt", "--out", "x/.."], "error: --out 'x/..' names no file."),
    ],
)
def test_an_empty_name_is_refused(moeframe, arguments: list[str], message: str) -> None:
    code, out, err = moeframe("tokenize", *arguments)
    assert (code, out, err.startswith(message)) == (2, "", True)
