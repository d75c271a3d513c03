"""Data of one's own, through `moeframe run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeframe.config.load import load_recipe
from moeframe.errors import UserInputError
from moeframe.train.assemble import assemble

from .conftest import SMALL, TINY, TWO, Runner


@pytest.fixture
def texts(moeframe: Runner) -> Runner:
    """A runner with 200 short documents, some of them shorter than the MTP module looks ahead."""
    moeframe.env["XDG_CACHE_HOME"] = str(moeframe.cwd / "cache")
    lines = [json.dumps({"text": "abcdefghij"[: number % 11] * (1 + number % 3)}) for number in range(200)]
    (moeframe.cwd / "own.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return moeframe


def here(*overrides: str) -> list[float]:
    """Train in this process and return the losses of the last step."""
    with assemble(load_recipe(TINY, [*SMALL, "train.precision=float64", *overrides])) as job:
        metrics = job.train(progress=False).metrics
    return [metrics["ce_loss"], metrics["mtp_loss"]]


def test_masked_documents_train_the_same_in_every_layout_and_from_tokens_on_disk(texts: Runner, monkeypatch) -> None:
    monkeypatch.chdir(texts.cwd)
    monkeypatch.setenv("XDG_CACHE_HOME", texts.env["XDG_CACHE_HOME"])
    text = ("data.name=text", "data.options={files: [own.jsonl], mask_documents: true, validation_every: 10}")
    ended = texts(
        "run", str(TINY), *SMALL, *TWO, *text, "train.precision=float64", "sharding.name=fsdp2", "train.eval_every=6"
    )
    assert ended.code == 0, ended.err
    assert ended.metrics[-1]["validation_loss"] > 0
    assert len(list((texts.cwd / "cache" / "moeframe" / "text").glob("*/train.json"))) == 1
    one = here(*text)
    assert [ended.metrics[-1][key] for key in ("ce_loss", "mtp_loss")] == pytest.approx(one, rel=1e-9)
    assert here("data.name=text", "data.options={files: [own.jsonl], validation_every: 10}") != one

    all_of_it = here("data.name=text", "data.options={files: [own.jsonl], mask_documents: true}")
    assert texts("tokenize", "own.jsonl", "--out", "tokens").code == 0
    assert here("data.name=token_file", "data.options={path: tokens, mask_documents: true}") == all_of_it


def test_text_that_is_refused_while_it_is_read_ends_the_run_with_file_and_place(texts: Runner) -> None:
    Path(texts.cwd / "bad.txt").write_bytes(b"good until here \xff")
    ended = texts("run", str(TINY), *SMALL, *TWO, "data.name=text", "data.options={files: [own.jsonl, bad.txt]}")
    assert ended.code == 2
    assert f"data.options.files: {texts.cwd}/bad.txt: byte 16 (0xff) is not UTF-8" in ended.err
    assert "Traceback" not in ended.err


def test_c66_data_below_one_global_batch_is_refused_with_the_numbers(texts: Runner, monkeypatch) -> None:
    monkeypatch.chdir(texts.cwd)
    monkeypatch.setenv("XDG_CACHE_HOME", texts.env["XDG_CACHE_HOME"])
    (texts.cwd / "own.txt").write_text("x" * 50)
    message = r"data\.name = 'text' has 3 sequences of the given length, but train\.global_batch_size is 4"
    with pytest.raises(UserInputError, match=message) as caught:
        here("data.name=text", "data.options={files: [own.txt]}")
    assert caught.value.exit_code == 2
