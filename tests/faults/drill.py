"""The fault drill: a 4-rank job meets a seeded random fault, must end with the right verdict and resume to the bit.

``python tests/faults/drill.py FIRST LAST [RESULT.json]`` runs the faults with the seeds FIRST to LAST - 1; results of
other seeds that the file holds stay there. The ranks are forked from this process, which has imported torch once; all
else is as `moeframe run` does it. Exit 1: a fault was met wrongly.

A full disk is a limit on file sizes that one rank has: its writes fail as they do on a full disk. Faults of the kinds
kill, stop and SIGTERM come from outside at a random moment; raise and slow from inside, at a random step and layer.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import moeframe.launch.local
import moeframe.train.worker
from moeframe.config.compose import compose
from moeframe.config.load import read_recipe
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.launch.local import die_with_parent
from moeframe.train.saved import complete_steps
from moeframe.train.start import start
from moeframe.watch.processes import health, start_ticks

ROOT = Path(__file__).parents[2]
STEPS = 8
LIMIT_S = 90.0
FAULTS = ("kill", "stop", "raise", "slow", "disk", "corrupt", "term")
FAMILIES: dict[str, tuple[str, ...]] = {
    "accumulate": ("parallel.ep=4", "sharding.name=fsdp2", "schedule.name=accumulate"),
    "1f1b": ("parallel.ep=2", "parallel.pp=2", "sharding.name=replicate", "schedule.name=1f1b"),
    "zbv": ("parallel.ep=2", "parallel.pp=2", "sharding.name=replicate", "schedule.name=zbv"),
}
COMMON = (
    "train.seq_len=16",
    "train.global_batch_size=8",
    "train.micro_batch_size=1",
    "model.hidden_size=32",
    "model.intermediate_size=32",
    "model.num_nextn_predict_layers=0",
    "model.num_hidden_layers=4",
    "launch.device=cpu",
    "launch.nproc_per_node=4",
    "data.name=synthetic",
    "dispatcher.name=stuck",
    f"train.steps={STEPS}",
    "checkpoint.every=2",
    "checkpoint.keep=3",
    "watchdog.min_s=3",
    "watchdog.first_step_s=60",
    "watchdog.save_s=20",
)
VERDICTS = {
    "kill": ("rank_died",),
    "stop": ("rank_stopped",),
    "raise": ("rank_raised",),
    "disk": ("rank_raised",),
}


class ForkedRank:
    """What `run_local` needs of subprocess.Popen, by fork."""

    def __init__(self, command: list[str], *, env: dict[str, str], stdout: Any, **_: Any) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            os.setsid()
            die_with_parent()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.environ.clear()
            os.environ.update(env)
            if stdout is not None:
                os.dup2(stdout.fileno(), 1)
                os.dup2(stdout.fileno(), 2)
            limit = os.environ.get("DRILL_FILE_LIMIT", "")
            if limit and limit.split(":")[0] == env["RANK"]:
                resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit.split(":")[1]),) * 2)
            code = moeframe.train.worker.main(command[3:])
        except BaseException:  # noqa: BLE001
            code = 1
        finally:
            sys.stdout.flush()
            os._exit(code)

    def poll(self) -> int | None:
        if self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.01)
        return code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


@dataclass
class Job:
    """One start of the command, in a process of its own."""

    folder: Path
    arguments: tuple[str, ...]
    resume: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    code: int | None = None

    def begin(self) -> Job:
        self.out = self.folder / f"out-{len(list(self.folder.glob('out-*')))}"
        self.pid = os.fork()
        if self.pid:
            return self
        code = 70
        try:
            os.setsid()
            die_with_parent()
            os.chdir(self.folder)
            with self.out.open("wb") as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
            os.environ.update(self.environment)
            moeframe.launch.local.subprocess = SimpleNamespace(  # there only
                Popen=ForkedRank, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT
            )
            plugins = ["stuck_parts"]
            loaded = read_recipe(ROOT / "recipes" / "deepseek_v3" / "tiny.yaml", [*COMMON, *self.arguments])
            host = build_plugin_manager(plugins, wanted=loaded.backends)
            code = start(compose(loaded, Catalog(host)), plugins, self.resume)
        except BaseException as error:  # noqa: BLE001
            sys.stderr.write(f"error: {error}\n")
            code = getattr(error, "exit_code", 70)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def ended(self) -> bool:
        if self.code is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def finish(self) -> int:
        """Wait for the end; a job that hangs is an error."""
        until = time.monotonic() + LIMIT_S
        while not self.ended():
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError(f"the job did not end within {LIMIT_S:.0f} s")
            time.sleep(0.02)
        assert self.code is not None
        return self.code

    @property
    def run_dir(self) -> Path:
        return max(self.folder.glob("runs/*/*"), key=lambda path: path.name)

    def processes(self) -> list[tuple[int, int]]:
        """Return the ranks' processes once all have said who they are."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until and not self.ended():
            with contextlib.suppress(OSError, ValueError):
                ranks = json.loads((self.run_dir / "ranks.json").read_text())
                return [(rank["pid"], start_ticks(rank["pid"])) for rank in ranks]
            time.sleep(0.01)
        return []

    def wait_for_step(self, step: int) -> None:
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until and not self.ended():
            with contextlib.suppress(OSError, ValueError):
                if len((self.run_dir / "metrics.jsonl").read_bytes().splitlines()) >= step:
                    return
            time.sleep(0.005)


@dataclass
class Result:
    """What became of one fault."""

    seed: int
    fault: str
    family: str
    rank: int
    step: int
    exit_code: int = -1
    verdict: str = ""
    resumed_from: int = -1
    seconds: float = 0.0
    wrong: str = ""


def losses(run_dir: Path) -> list[tuple[int, float, float]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines]


def read_verdict(run_dir: Path) -> str:
    file = run_dir / "stall" / "verdict.json"
    return json.loads(file.read_text())["kind"] if file.exists() else ""


def meet(seed: int, folder: Path, wanted: list[tuple[int, float, float]]) -> Result:
    """Have a job meet the fault of a seed; return what was wrong, "" if nothing."""
    dice = random.Random(seed)
    family = list(FAMILIES)[seed % len(FAMILIES)]
    fault = FAULTS[seed % len(FAULTS)]
    result = Result(seed=seed, fault=fault, family=family, rank=dice.randrange(4), step=dice.randrange(1, STEPS - 1))
    began = time.monotonic()
    try:
        _meet(result, dice, folder, wanted)
    except AssertionError as error:
        result.wrong = str(error) or "an assertion failed"
    result.seconds = round(time.monotonic() - began, 1)
    return result


def _meet(result: Result, dice: random.Random, folder: Path, wanted: list[tuple[int, float, float]]) -> None:
    arguments, fault = list(FAMILIES[result.family]), result.fault
    once = folder / "once"
    once.mkdir()
    environment = {}
    if fault in ("raise", "slow"):
        plan = "raise" if fault == "raise" else "late"
        arguments += [f"dispatcher.options.plan={plan}@{result.step + 1}", "dispatcher.options.layer=-1"]
        arguments += [f"dispatcher.options.rank={result.rank}", f"dispatcher.options.once={once}"]
        arguments += ["dispatcher.options.seconds=1.5"] if fault == "slow" else []
    if fault == "disk":
        environment["DRILL_FILE_LIMIT"] = f"{result.rank}:80000"
    job = Job(folder, tuple(arguments), environment=environment).begin()
    processes = job.processes()
    if fault in ("kill", "stop", "term", "corrupt"):
        job.wait_for_step(result.step)
        time.sleep(dice.random() * 0.3)
        number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}.get(fault, signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(processes[result.rank][0], number)
    result.exit_code = job.finish()
    run_dir = job.run_dir
    result.verdict = read_verdict(run_dir)
    assert len(processes) == 4, "the ranks did not start"
    orphans = [pid for pid, ticks in processes if health(pid, ticks) != "dead"]
    assert not orphans, f"processes {orphans} outlived the job"
    _require_outcome(result, job)
    steps = complete_steps(run_dir / "checkpoints")
    if result.exit_code == 0:
        assert losses(run_dir) == wanted, "the losses differ from those of the undisturbed run"
        return
    if fault == "corrupt" and steps:
        steps = _corrupted(result, dice, job, steps)
    resume = str(run_dir) if steps else None
    result.resumed_from = steps[-1] if steps else 0
    arguments = (
        [one for one in arguments if not one.startswith("dispatcher.options.plan")] if fault == "disk" else arguments
    )
    again = Job(folder, tuple(arguments), resume=resume).begin()
    code = again.finish()
    text = again.out.read_text(errors="replace")
    if steps and steps[-1] >= STEPS:
        assert code == 2, f"a finished run was resumed (exit {code})"
        return
    assert code == 0, f"resuming ended with {code}: {text[-2000:]}"
    assert losses(again.run_dir) == wanted, "the losses after resuming differ from those of the undisturbed run"


def _require_outcome(result: Result, job: Job) -> None:
    text = job.out.read_text(errors="replace")
    if result.fault == "slow":
        assert (result.exit_code, result.verdict) == (0, ""), (
            f"exit {result.exit_code}, {result.verdict}: {text[-1500:]}"
        )
    elif result.fault in ("term", "corrupt"):
        # A signal that comes when the last step is done already ends nothing.
        assert result.exit_code in (0, 143), f"exit {result.exit_code}: {text[-1500:]}"
        assert not result.verdict, f"a verdict on a job that was ended by a signal: {text[-3000:]}"
    elif result.exit_code == 0:
        assert result.fault in ("kill", "stop"), f"the fault had no effect: {text[-1500:]}"
        assert len(losses(job.run_dir)) == STEPS, "the job ended well without all its steps"
    else:
        assert result.exit_code == 1, f"exit {result.exit_code}: {text[-1500:]}"
        assert result.verdict in VERDICTS[result.fault], f"verdict {result.verdict!r}: {text[-1500:]}"


def _corrupted(result: Result, dice: random.Random, job: Job, steps: list[int]) -> list[int]:
    """Damage a shard of the newest checkpoint: every rank must refuse it alike, and the one before must do."""
    newest = job.run_dir / "checkpoints" / f"step-{steps[-1]}"
    shard = dice.choice(sorted(newest.glob("__*.distcp")))
    data = shard.read_bytes()
    shard.write_bytes(data[: dice.randrange(len(data) // 2)])
    began = time.monotonic()
    if steps[-1] < STEPS:
        broken = Job(job.folder, FAMILIES[result.family], resume=str(job.run_dir)).begin()
        code = broken.finish()
        text = broken.out.read_text(errors="replace")
        assert code in (1, 2), f"a broken checkpoint was taken for whole (exit {code})"
        assert f"step-{steps[-1]}" in text, f"the broken checkpoint is not named: {text[-1500:]}"
        assert time.monotonic() - began < 40, "refusing a broken checkpoint took too long"
        said = {
            log.read_text().rsplit("checkpoint of step", 1)[-1].splitlines()[0]
            for log in (job.run_dir / "log").glob("rank-?.log")
            if "checkpoint of step" in log.read_text()
        }
        assert len(said) <= 1, f"ranks gave different messages: {said}"
    shutil.rmtree(newest)
    return steps[:-1]


def reference(family: str, folder: Path) -> list[tuple[int, float, float]]:
    """Return the losses of a run that nothing disturbs."""
    folder.mkdir()
    job = Job(folder, FAMILIES[family]).begin()
    assert job.finish() == 0, job.out.read_text(errors="replace")
    return losses(job.run_dir)


def _write(file: Path, results: list[dict[str, Any]]) -> None:
    """Write the dated result, one fault a line."""
    own = {result["seed"] for result in results}
    kept = json.loads(file.read_text())["faults"] if file.exists() else []
    every = sorted([*results, *(one for one in kept if one["seed"] not in own)], key=lambda one: one["seed"])
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    head = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
    }
    lines = ",\n".join(f"  {json.dumps(one)}" for one in every)
    file.write_text(f'{{{json.dumps(head)[1:-1]}, "faults": [\n{lines}\n]}}\n')


def main(arguments: list[str]) -> int:
    """Run the faults of some seeds; write and print what became of them."""
    first, last = int(arguments[0]), int(arguments[1])
    torch.set_num_threads(1)
    sys.path.insert(0, str(ROOT / "tests" / "data" / "plugins"))
    results = []
    with tempfile.TemporaryDirectory(prefix="moeframe-faults-") as name:
        wanted: dict[str, list[tuple[int, float, float]]] = {}
        for seed in range(first, last):
            family = list(FAMILIES)[seed % len(FAMILIES)]
            if family not in wanted:
                wanted[family] = reference(family, Path(name) / family)
            folder = Path(name) / str(seed)
            folder.mkdir()
            results.append(meet(seed, folder, wanted[family]))
            sys.stdout.write(json.dumps(asdict(results[-1])) + "\n")
            sys.stdout.flush()
            shutil.rmtree(folder)
            if len(arguments) > 2:
                _write(Path(arguments[2]), [asdict(result) for result in results])
    return any(result.wrong for result in results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
