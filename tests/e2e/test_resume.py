"""Resuming as a user does it; that the bits are equal is shown in tests/dist/test_resume.py."""

from __future__ import annotations

import json
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from moeframe.train.saved import COMPLETE, complete_steps

from .conftest import SMALL, TINY, TWO, Ended, Runner

# 64 sequences, 4 a step: an epoch ends after step 16, so position and order cross it.
BASE = (str(TINY), *SMALL, "data.name=faulty", "train.steps=20", "checkpoint.every=4", "checkpoint.keep=10")


def run(moeframe: Runner, *arguments: str) -> Ended:
    return moeframe("--plugin", "faulty_data", "run", *arguments)


def losses(ended: Ended) -> list[tuple[float, float]]:
    return [(line["loss"], line["grad_norm"]) for line in ended.metrics]


def test_kill_9_during_a_save_leaves_the_checkpoint_before_it(moeframe: Runner) -> None:
    arguments = (*BASE, *TWO, "sharding.name=fsdp2", "train.steps=100000", "checkpoint.every=1", "checkpoint.keep=3")
    with moeframe.running("--plugin", "faulty_data", "run", *arguments) as process:
        until = time.monotonic() + 100
        saved: list[Path] = []
        # At least one is whole, and the newest has begun and is not.
        while len(saved) < 2 or (saved[-1] / COMPLETE).exists():
            saved = sorted(moeframe.cwd.glob("runs/*/*/checkpoints/step-*"), key=lambda path: int(path.name[5:]))
            assert process.poll() is None
            assert time.monotonic() < until
    (run_dir,) = moeframe.cwd.glob("runs/*/*")
    whole = complete_steps(run_dir / "checkpoints")[-1]
    steps = f"train.steps={whole + 2}"
    resumed = run(moeframe, *arguments, steps, "--resume")
    assert resumed.code == 0, resumed.err
    assert f"from the checkpoint of step {whole}" in resumed.out
    straight = run(moeframe, *arguments, steps, "train.output_dir=straight")
    assert losses(resumed) == losses(straight)


def test_a_restart_by_torchrun_goes_on_in_its_own_directory(moeframe: Runner) -> None:
    once = moeframe.cwd / "failed-once"
    (moeframe.cwd / "once.py").write_text(
        "from pathlib import Path\nimport os, signal\nfrom moeframe.hooks import hookimpl\n"
        "@hookimpl\ndef moeframe_on_step_end(step):\n"
        f"    mark = Path({str(once)!r})\n"
        "    if step == 7 and not mark.exists():\n        mark.touch()\n        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    moeframe.env["PYTHONPATH"] += f":{moeframe.cwd}"
    arguments = (
        "--plugin",
        "once",
        "--plugin",
        "faulty_data",
        "run",
        *BASE,
        *TWO,
        "sharding.name=fsdp2",
        "train.steps=10",
    )
    ended = moeframe.torchrun(*arguments, options=("--max-restarts=1",))
    assert ended.code == 0, ended.err
    assert once.exists()
    (run_dir,) = moeframe.cwd.glob("runs/*/*")
    steps = [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 11))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    ended = Runner(tmp_path_factory.mktemp("finished"))("run", str(TINY), *SMALL, "train.steps=2")
    assert ended.code == 0, ended.err
    return ended


class TestRefusals:
    @pytest.fixture
    def done(self, moeframe: Runner, finished: Ended) -> Ended:
        """Return a copy of a finished run, which the test may change."""
        shutil.copytree(finished.cwd / "runs", moeframe.cwd / "runs", symlinks=True)
        return replace(finished, cwd=moeframe.cwd)

    def refused(self, moeframe: Runner, *arguments: str) -> str:
        ended = moeframe("run", str(TINY), *SMALL, *arguments)
        assert ended.code == 2, ended.err
        assert "Traceback" not in ended.err
        return ended.err

    def test_a_checkpoint_of_another_model(self, moeframe: Runner, done: Ended) -> None:
        message = self.refused(moeframe, "model.n_routed_experts=16", "train.steps=4", "--resume", str(done.run_dir))
        assert "model.n_routed_experts: 16 now, 8 then" in message

    def test_other_data_than_the_run_was_trained_on(self, moeframe: Runner, done: Ended) -> None:
        message = self.refused(moeframe, "train.seed=5", "train.steps=4", "--resume", str(done.run_dir))
        assert "train.seed: 5 now, 0 then" in message

    def test_a_run_that_has_reached_its_end(self, moeframe: Runner, done: Ended) -> None:
        assert "nothing is left to do" in self.refused(moeframe, "train.steps=2", "--resume", str(done.run_dir))

    def test_a_run_without_a_whole_checkpoint(self, moeframe: Runner, done: Ended) -> None:
        (done.run_dir / "checkpoints" / "step-2" / "COMPLETE").unlink()
        assert "no whole checkpoint" in self.refused(moeframe, "train.steps=4", "--resume", str(done.run_dir))
        assert "none of the 1 runs" in self.refused(moeframe, "train.steps=4", "--resume")

    def test_what_is_no_run_directory(self, moeframe: Runner) -> None:
        assert "no run directory" in self.refused(moeframe, "--resume", "nowhere")

    def test_a_second_job_in_the_same_directory(self, moeframe: Runner, done: Ended) -> None:
        first = moeframe.start("run", str(TINY), *SMALL, "train.steps=100000", "--resume", str(done.run_dir))
        until = time.monotonic() + 60
        while len((done.run_dir / "metrics.jsonl").read_text().splitlines()) < 3:
            assert time.monotonic() < until
            time.sleep(0.05)
        message = self.refused(moeframe, "train.steps=100000", "--resume", str(done.run_dir))
        assert f"another job is writing to {done.run_dir}" in message
        assert f"process {first.pid}" in message
        first.send_signal(signal.SIGTERM)
        assert moeframe.ended(first).code == 128 + signal.SIGTERM

    def test_c44_a_broken_file_ends_every_rank_with_the_rank_and_the_cause(self, moeframe: Runner) -> None:
        every = ("sharding.name=fsdp2", "checkpoint.every=1")
        done = moeframe("run", str(TINY), *SMALL, *TWO, *every, "train.steps=2")
        checkpoint = done.run_dir / "checkpoints" / "step-2"
        shard = checkpoint / "__1_0.distcp"
        shard.write_bytes(shard.read_bytes()[:100])
        ended = moeframe("run", str(TINY), *SMALL, *TWO, *every, "train.steps=4", "--resume", str(done.run_dir))
        assert ended.code == 1
        assert "checkpoint of step 2" in ended.err
        assert "rank 1" in ended.err
        way_out = f"The checkpoint of step 1 is whole too: move {checkpoint} away, and go on from step 1 with `moeframe"
        assert way_out in ended.err.splitlines()[-2]
