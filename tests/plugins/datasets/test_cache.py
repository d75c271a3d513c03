"""Tokens that are kept: made once, found again, whole or not there."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from moeframe_datasets import cache as cache_module
from moeframe_datasets.cache import Corpus, TokenCache, default_folder
from moeframe_datasets.documents import Reading
from moeframe_datasets.store import TokenStore
from moeframe_datasets.vocabulary import read_vocabulary

from moeframe.errors import JobFailedError, RecipeError, UserInputError

PROGRAM = """
import logging, sys, time
from pathlib import Path
from moeframe_datasets import cache
from moeframe_datasets.documents import Reading
from moeframe_datasets.vocabulary import read_vocabulary

logging.basicConfig(level=logging.INFO, stream=sys.stdout)
folder, file, rank, start = sys.argv[1:5]
write = cache.write_documents
def slowly(*arguments):
    print("working", flush=True)
    time.sleep({pause})
    return write(*arguments)
cache.write_documents = slowly
corpus = cache.Corpus(files=(Path(file),), vocabulary=read_vocabulary("byte"), reading=Reading(), separator=0,
                      validation_every=0)
while time.time() < float(start):
    time.sleep(0.005)
store = cache.TokenCache(Path(folder), local_rank=int(rank)).open(corpus, "train")
print("opened", len(store), int(store.tokens(0, len(store)).sum()))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def corpus(put) -> Corpus:
    files = (put("a.txt", "one"), put("b.txt", "two"), put("c.jsonl", '{"text": "x"}\n{"text": "y"}\n'))
    return Corpus(files=files, vocabulary=read_vocabulary("byte"), reading=Reading(), separator=0, validation_every=0)


def content(store: TokenStore) -> bytes:
    return bytes(store.tokens(0, len(store)).tolist())


@pytest.fixture
def made(monkeypatch) -> Callable[[], int]:
    """Return a function that says how often files were tokenized so far."""
    calls: list[object] = []
    write = cache_module.write_documents

    def counted(*arguments):
        calls.append(arguments)
        return write(*arguments)

    monkeypatch.setattr(cache_module, "write_documents", counted)
    return lambda: len(calls)


def test_documents_follow_one_another_each_with_its_separator(folder: Path, corpus: Corpus) -> None:
    store = TokenCache(folder).open(corpus, "train")
    assert content(store) == b"one\0two\0x\0y\0"
    assert store.document_ids(0, len(store)).tolist() == [0] * 4 + [1] * 4 + [2, 2, 3, 3]
    assert content(TokenCache(folder).open(replace(corpus, separator=None), "train")) == b"onetwoxy"


def test_every_so_many_documents_one_is_held_out(folder: Path, corpus: Corpus) -> None:
    corpus = replace(corpus, validation_every=3)
    assert content(TokenCache(folder).open(corpus, "train")) == b"one\0two\0y\0"
    assert content(TokenCache(folder).open(corpus, "validation")) == b"x\0"


def test_files_are_tokenized_once(folder: Path, corpus: Corpus, made) -> None:
    for rank in (0, 0, 1):
        TokenCache(folder, local_rank=rank).open(corpus, "train")
        TokenCache(folder, local_rank=rank).open(corpus, "validation")
    assert made() == 1


def test_the_same_text_is_found_again_wherever_it_lies(folder: Path, corpus: Corpus, put, made) -> None:
    first = TokenCache(folder).open(corpus, "train")
    moved = tuple(
        put(f"elsewhere/{number}{path.suffix}", path.read_bytes()) for number, path in enumerate(corpus.files)
    )
    again = TokenCache(folder).open(replace(corpus, files=moved), "train")
    for path in corpus.files:
        os.utime(path, (10**9, 10**9))
    touched = TokenCache(folder).open(corpus, "train")
    assert first.paths == again.paths == touched.paths
    assert made() == 1


def test_what_decides_on_the_tokens_decides_on_the_key(folder: Path, corpus: Corpus, put, words: Path) -> None:
    changed = [
        corpus,
        replace(corpus, separator=None),
        replace(corpus, validation_every=2),
        replace(corpus, reading=Reading(errors="replace")),
        replace(corpus, vocabulary=read_vocabulary(str(words))),
        replace(corpus, files=corpus.files[::-1]),
        replace(corpus, files=corpus.files[:2]),
        replace(corpus, files=(put("d.txt", '{"text": "x"}'),)),
        replace(corpus, files=(put("d.jsonl", '{"text": "x"}'),)),
    ]
    stores = [TokenCache(folder).open(one, "train") for one in changed]
    assert len({store.paths for store in stores}) == len(changed)
    corpus.files[0].write_text("another")
    os.utime(corpus.files[0], (10**9, 10**9))
    assert content(TokenCache(folder).open(corpus, "train")).startswith(b"another\0")


@pytest.mark.parametrize("damage", ["cut off", "changed", "missing", "no header", "empty"])
def test_damaged_tokens_are_made_again_and_that_is_said(
    folder: Path, corpus: Corpus, made, caplog, damage: str
) -> None:
    good = TokenCache(folder).open(corpus, "train")
    tokens = good.paths.tokens
    if damage == "cut off":
        tokens.write_bytes(tokens.read_bytes()[:-1])
    elif damage == "changed":
        tokens.write_bytes(b"\1" + tokens.read_bytes()[1:])
    elif damage == "missing":
        tokens.unlink()
    elif damage == "no header":
        good.paths.header.write_text("{")
    else:
        shutil.rmtree(tokens.parent)
        tokens.parent.mkdir()
    with caplog.at_level(logging.WARNING):
        again = TokenCache(folder).open(corpus, "train")
    assert content(again) == b"one\0two\0x\0y\0"
    assert made() == 2
    assert "kept tokens are damaged and are made again" in caplog.text
    assert content(TokenCache(folder).open(corpus, "train")) == content(again)
    assert made() == 2


def test_a_refused_file_leaves_nothing_behind(folder: Path, corpus: Corpus, put) -> None:
    bad = replace(corpus, files=(*corpus.files, put("bad.txt", b"\xff")))
    with pytest.raises(UserInputError, match=r"bad\.txt: byte 0"):
        TokenCache(folder).open(bad, "train")
    assert [path.name for path in folder.iterdir()] == ["seen"]
    assert [path.suffix for path in (folder / "seen").iterdir()] == [".lock"]


def test_files_without_a_text_are_refused(folder: Path, corpus: Corpus, put) -> None:
    empty = replace(corpus, files=(put("e.txt", ""), put("f.jsonl", '\n{"text": ""}\n')))
    with pytest.raises(UserInputError, match=r"2 files \(.*e\.txt \.\.\.\) hold no text"):
        TokenCache(folder).open(empty, "train")
    with pytest.raises(UserInputError, match=r"e\.txt holds no text"):
        TokenCache(folder).open(replace(empty, files=empty.files[:1]), "train")
    some = replace(empty, files=(empty.files[0], corpus.files[0]))  # an empty file among others is nothing to refuse
    assert content(TokenCache(folder).open(some, "train")) == b"one\0"


def test_a_file_that_changes_while_it_is_read_fails_the_job(folder: Path, corpus: Corpus, monkeypatch) -> None:
    write = cache_module.write_documents

    def meanwhile(*arguments):
        corpus.files[0].write_text("two!")
        return write(*arguments)

    monkeypatch.setattr(cache_module, "write_documents", meanwhile)
    with pytest.raises(JobFailedError, match=r"one of 3 file\(s\), such as .*a\.txt, changed while it was read"):
        TokenCache(folder).open(corpus, "train")


def test_a_file_that_has_just_changed_is_waited_for(folder: Path, corpus: Corpus, monkeypatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(cache_module.time, "sleep", waited.append)
    os.utime(corpus.files[0])
    TokenCache(folder).open(corpus, "train")
    assert 0 < sum(waited) <= 2


def test_a_full_disk_fails_the_job_and_names_the_place(folder: Path, corpus: Corpus, monkeypatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "write_documents", full)
    with pytest.raises(JobFailedError, match=rf"{folder}: writing tokens failed \(No space left on device\)"):
        TokenCache(folder).open(corpus, "train")


def test_a_folder_that_cannot_be_made_is_refused_with_the_option(tmp_path: Path, corpus: Corpus) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        RecipeError, match=r"data\.options\.cache_dir: .*/file/cache cannot be written \(Not a directory"
    ):
        TokenCache(tmp_path / "file" / "cache").open(corpus, "train")


def test_the_folder_is_where_the_desktop_keeps_caches(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "moeframe" / "text"
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        monkeypatch.setenv("HOME", "/home/someone")
        assert default_folder() == Path("/home/someone/.cache/moeframe/text")


def start(folder: Path, file: Path, rank: int, *, at: float = 0.0, pause: float = 0.0) -> subprocess.Popen[str]:
    arguments = [str(folder), str(file), str(rank), str(at)]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(pause=pause), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (0, 0, 0, 0)], ids=["one job", "four jobs"])
def test_of_processes_that_start_at_once_one_works_and_all_read_the_same(folder: Path, put, ranks) -> None:
    file = put("a.txt", "some words\n" * 20_000)
    at = time.time() + 1.0
    processes = [start(folder, file, rank, at=at, pause=0.3) for rank in ranks]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, answers
    opened = {output.splitlines()[-1] for output, _ in answers}
    assert opened == {f"opened 220001 {sum(b'some words' + bytes([10])) * 20_000}"}
    workers = [rank for rank, (output, _) in zip(ranks, answers, strict=True) if "working" in output]
    assert workers == [0]


def test_a_process_that_is_killed_leaves_the_work_to_the_next(folder: Path, put) -> None:
    file = put("a.txt", "words")
    killed = start(folder, file, 0, pause=60)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "working\n"
    assert [path.name.startswith(".") for path in folder.iterdir() if path.name != "seen"] == [True]
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    output, errors = start(folder, file, 0).communicate(timeout=60)
    assert output.splitlines()[-1] == f"opened 6 {sum(b'words')}", errors
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
