"""Mistakes that people make: verify finds each one and names it.

`needs` proves that the comparison a test aims at is the one that finds the mistake: without it, the cause is lost. The
layouts are the few that tell the causes apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from moeframe.config.schema import Recipe
from moeframe.model.balance import balance_sum
from moeframe.model.config import DeepSeekV3Config
from moeframe.model.counters import recomputing
from moeframe.model.deepseek_v3 import ModelStage
from moeframe.model.router import Router
from moeframe.protocols.data import IGNORED, MicroBatch
from moeframe.train.assemble import Job
from moeframe.train.metrics import StepTokens
from moeframe.train.trainer import Computed, Trainer
from moeframe.verify import Finding, Verdict
from moeframe.verify.diagnose import diagnose
from moeframe.verify.rehearsal import Jobs
from moeframe.verify.weights import Basis

Verified = Callable[..., Verdict]

ONE, EP, DP = "one process", "EP 2 (2 processes)", "DP 2 (2 processes)"


def the_finding(verdict: Verdict, words: str) -> Finding:
    found = [finding for finding in verdict.findings if words in str(finding)]
    assert found, "\n".join(verdict.lines())
    assert verdict.exit_code == 1
    return found[0]


def needs(verdict: Verdict, words: str, *quantities: str) -> bool:
    """Say whether nothing names the cause once these quantities are compared no more ("formulas": with no formula)."""
    without = []
    for case in verdict.cases:
        kept = [one for one in case.compared.differences if one.quantity not in quantities]
        ranks = [replace(one, formulas=() if "formulas" in quantities else one.formulas) for one in case.ranks]
        without.append(replace(case, ranks=tuple(ranks), compared=replace(case.compared, differences=tuple(kept))))
    assert verdict.reference is not None
    reference = replace(verdict.reference, formulas=() if "formulas" in quantities else verdict.reference.formulas)

    def not_again() -> Basis:
        raise AssertionError("gradients differ in no simple way, though they are not compared")

    findings = diagnose(without, reference, basis=not_again, probes=lambda case: ())
    return not any(words in str(finding) for finding in findings)


def different(verdict: Verdict, title: str) -> set[str]:
    """Return the quantities of a layout beyond tolerance, over both steps."""
    (row,) = [row for row in verdict.rows if row.title == title]
    return {quantity for quantity, worst in row.worst.items() if worst > 1e-9}


# --- expert gradients, averages


def test_a_missing_division_by_ep_is_named(verified: Verified) -> None:
    fault = ("sharding.name=faulty", "sharding.options.fault=no division by ep")
    verdict = verified(*fault, only=(ONE, EP, DP))
    finding = the_finding(verdict, "division by the ep size is missing")
    assert finding.what == "gradients of blocks.*.experts.routed.*, mtp.*.block.experts.routed.*"
    assert finding.ratio == "x2.000 = ep"
    assert needs(verdict, "division by the ep size is missing", "gradients")
    assert finding.layouts == (EP,)
    assert [row.verdict for row in verdict.rows] == ["reference", "DIFFERENT", "equal", "equal"]
    assert "losses" in different(verdict, EP)  # only from the second step on: Adam hides the factor in the first
    assert "gradients" in different(verdict, EP)


def test_gradients_averaged_over_data_ranks_are_named(verified: Verified) -> None:
    verdict = verified("sharding.name=faulty", "sharding.options.fault=averages", only=(ONE, EP, DP))
    finding = the_finding(verdict, "averaged over the data ranks in place of summed")
    assert finding.what == "gradients of *"
    assert finding.ratio == "x0.500 = 1/dp"
    assert needs(verdict, "averaged over the data ranks", "gradients")
    assert set(finding.layouts) == {EP, DP}


def test_gradients_divided_by_the_number_of_micro_batches_are_named(verified: Verified) -> None:
    fault = ("schedule.name=faulty", "schedule.options.fault=divides by micro-batches")
    verdict = verified(*fault, only=(ONE, EP))
    finding = the_finding(verdict, "divided by the number of micro-batches")
    assert finding.ratio == "x0.500, x0.250 = 1/micro-batches"
    assert needs(verdict, "divided by the number of micro-batches", "gradients")


# --- clip norm. Nothing is clipped here, so that only the norm itself can tell: nothing else differs.


@pytest.mark.parametrize(
    ("fault", "layout", "cause"),
    [
        ("local norm", EP, "the norm is local: it covers only what each rank holds"),
        ("dense counted twice", EP, "dense parameters are counted once for each ep rank"),
        ("replicas counted", DP, "every replica of an expert is counted"),
    ],
)
def test_a_wrong_clip_norm_is_named(verified: Verified, fault: str, layout: str, cause: str) -> None:
    faulty = ("sharding.name=faulty", f"sharding.options.fault={fault}", "optimizer.clip_grad_norm=null")
    verdict = verified(*faulty, only=(ONE, EP, DP))
    finding = the_finding(verdict, cause)
    assert finding.what == "clip norm"
    assert finding.layouts == (layout,)
    assert different(verdict, layout) == {"norm"}
    assert needs(verdict, cause, "norm")


def test_experts_that_are_not_clipped_are_named(verified: Verified) -> None:
    verdict = verified("sharding.name=faulty", "sharding.options.fault=experts not clipped", only=(EP,))
    finding = the_finding(verdict, "left out of clipping")
    assert finding.what == "clipped of blocks.*.experts.routed.*, mtp.*.block.experts.routed.*"
    assert needs(verdict, "left out of clipping", "clipped")


# --- bias


class LocalBias(Jobs):
    """Updates biases from the loads of the rank itself."""

    def open(self, recipe: Recipe, plugins: Sequence[str]) -> Job:
        job = super().open(recipe, plugins)
        model, kept = job.model, {}
        take, update = model.take_counters, model.update_expert_bias

        def keep() -> Any:
            kept["own"] = take()
            return kept["own"]

        model.take_counters = keep
        model.update_expert_bias = lambda tokens_per_expert: update(kept["own"].tokens_per_expert)
        return job


def test_a_bias_updated_from_the_ranks_own_loads_is_named(verified: Verified) -> None:
    verdict = verified(jobs=LocalBias(), only=(ONE, EP))
    finding = the_finding(verdict, "each rank updates its bias from the tokens it has seen itself")
    assert finding.what == "expert bias (e_score_correction_bias)"
    assert finding.layouts == (EP,)
    assert "biases" in different(verdict, EP)
    assert needs(verdict, "each rank updates its bias", "biases")


# --- means


def local_tokens(batches: list[MicroBatch]) -> tuple[int, int]:
    """Return the targets and the valid inputs of this rank."""
    targets = sum(int((batch.targets != IGNORED).sum()) for batch in batches)
    valid = sum(batch.input_ids.numel() if batch.valid is None else int(batch.valid.sum()) for batch in batches)
    return targets, valid


class MeanOfMeans(Trainer):
    """Every rank divides its cross-entropy by its own tokens, and the means are averaged."""

    def _micro_batches(self, step: int) -> list[MicroBatch]:
        self.own = super()._micro_batches(step)
        return self.own

    def _begin_step(self, tokens: StepTokens) -> None:
        targets, _ = local_tokens(self.own)
        super()._begin_step(replace(tokens, loss_tokens=targets * self._job.meshes.size("dp")))


class MeansOfMeans(Jobs):
    def trainer(self, job: Job) -> Trainer:
        return MeanOfMeans(job, progress=False)


def test_a_mean_of_means_is_named(verified: Verified) -> None:
    verdict = verified(jobs=MeansOfMeans(), only=(ONE, DP))
    finding = the_finding(verdict, "mean of means: each rank divides by its own number of tokens")
    assert finding.what == "gradient of the ce loss"
    assert finding.layouts == (DP,)
    assert "gradients" in different(verdict, DP)
    assert needs(verdict, "mean of means", "gradients")


class LocalBalance(MeanOfMeans):
    """The balance loss is the mean of the ranks' values, in its gradient and in what is reported."""

    def _begin_step(self, tokens: StepTokens) -> None:
        _, self.valid = local_tokens(self.own)
        Trainer._begin_step(self, replace(tokens, valid_tokens=self.valid * self._job.meshes.size("dp")))

    def apply_gradients(self, step: int, computed: Computed) -> dict[str, Any]:
        take, kept = self._job.model.take_counters, {}

        def keep() -> Any:
            kept["own"] = take()
            return kept["own"]

        self._job.model.take_counters = keep
        metrics = super().apply_gradients(step, computed)
        self._job.model.take_counters = take
        mean = kept["own"].balance_sum.sum() / self.valid / self._job.meshes.size("dp")
        dist.all_reduce(mean)
        return {**metrics, "balance_loss": float(mean)}


class LocalBalances(Jobs):
    def trainer(self, job: Job) -> Trainer:
        return LocalBalance(job, progress=False)


def test_a_balance_loss_that_is_a_mean_of_local_values_is_named(verified: Verified) -> None:
    verdict = verified(jobs=LocalBalances(), only=(ONE, DP))
    cause = "the balance loss is the mean of the ranks' local values"
    found = [finding for finding in verdict.findings if finding.cause and finding.cause.startswith(cause)]
    assert {finding.what for finding in found} == {"value of the balance loss", "gradient of the balance loss"}
    assert {finding.layouts for finding in found} == {(DP,)}
    assert needs(verdict, cause, "losses", "gradients")


class ScaledStage(ModelStage):
    """The MTP loss is added up over micro-batches as if each were the whole batch."""

    count: int

    def loss(self, output: Any, micro_batch: MicroBatch) -> torch.Tensor:
        config = self._config
        self._config = replace(config, mtp_loss_weight=config.mtp_loss_weight * self.count)
        loss = super().loss(output, micro_batch)
        self._config = config
        return loss


class ScaledMtp(Jobs):
    def open(self, recipe: Recipe, plugins: Sequence[str]) -> Job:
        job = super().open(recipe, plugins)
        for stage in job.stages:
            stage.__class__ = ScaledStage
            stage.count = job.composition.num_micro_batches
        return job


def test_an_mtp_loss_scaled_by_micro_batches_is_named(verified: Verified) -> None:
    verdict = verified(jobs=ScaledMtp(), only=(ONE, EP))
    finding = the_finding(verdict, "the MTP loss is scaled by the number of micro-batches")
    assert finding.what == "gradient of the mtp 1 loss"
    assert finding.ratio == "x2.000 = micro-batches"  # of EP 2; in one process it is x4
    assert {title for one in verdict.findings if "micro-batches" in str(one) for title in one.layouts} == {ONE, EP}
    assert needs(verdict, "the MTP loss is scaled", "gradients")


# --- routing and recomputation: the same in the reference and in every layout, so only the formulas can tell


class ZeroMaskRouter(Router):
    """Masks the experts of dropped groups with 0."""

    def forward(
        self, x_BSD: torch.Tensor, valid_BS: torch.Tensor | None, forced_BSK: torch.Tensor | None, *more: Any
    ) -> Any:
        config: DeepSeekV3Config = self._config
        with torch.no_grad():
            biased = self._scores(x_BSD.flatten(0, 1)) + self.e_score_correction_bias
            grouped = biased.unflatten(-1, (config.n_group, -1))
            kept = grouped.topk(2, -1).values.sum(-1).topk(config.topk_group, -1).indices
            mask = torch.zeros(grouped.shape[:2], dtype=torch.bool).scatter_(1, kept, True)
            ids = (grouped * mask.unsqueeze(-1)).flatten(-2).topk(config.num_experts_per_tok, -1).indices
        return super().forward(x_BSD, valid_BS, ids.view(*x_BSD.shape[:2], -1), *more)


class CountingRouter(Router):
    """Counts again when it is recomputed."""

    def _balanced(self, scores_TE: torch.Tensor, ids_TK: torch.Tensor, *more: Any) -> torch.Tensor:
        out = super()._balanced(scores_TE, ids_TK, *more)
        places_TK, sequences, valid_BS, dropped = more[:4]
        if recomputing():
            counts_BE = self._counts(ids_TK, places_TK, sequences[0])
            config = self._config
            balance = balance_sum(
                scores_TE.detach().unflatten(0, sequences),
                counts_BE,
                valid_BS,
                top_k=config.num_experts_per_tok,
                alpha=config.aux_loss_alpha,
            )
            self._counter.add(counts_BE.sum(0), balance, dropped)
        return out


class Routers(Jobs):
    """Every router is of another class."""

    def __init__(self, kind: type[Router]) -> None:
        self.kind = kind

    def open(self, recipe: Recipe, plugins: Sequence[str]) -> Job:
        job = super().open(recipe, plugins)
        for module in job.model.modules():
            if isinstance(module, Router):
                module.__class__ = self.kind
        return job


def test_a_group_mask_with_zero_is_named(verified: Verified) -> None:
    verdict = verified(jobs=Routers(ZeroMaskRouter), only=(EP,))
    finding = the_finding(verdict, "masked with 0 in place of -inf")
    assert finding.layouts == ("reference", EP)
    assert different(verdict, EP) == set()  # the layouts agree with one another; the formulas tell
    assert needs(verdict, "masked with 0", "formulas")


def test_recomputation_that_counts_again_is_named(verified: Verified) -> None:
    verdict = verified("train.recompute=full", jobs=Routers(CountingRouter), only=(ONE, EP))
    loads = the_finding(verdict, "tokens are counted a second time when their layer is recomputed")
    balance = the_finding(verdict, "the balance loss is counted a second time when its layer is recomputed")
    assert loads.ratio == balance.ratio == "x2.000 = recompute"
    assert loads.layouts == balance.layouts == (EP, ONE)
    assert different(verdict, EP) == {"losses", "loads"}
    assert needs(verdict, "tokens are counted a second time", "loads")
    assert needs(verdict, "the balance loss is counted a second time", "losses")


# --- parts, which verify tries by themselves once losses or gradients differ


def test_gates_that_a_compute_backend_rounds_are_named(verified: Verified) -> None:
    verdict = verified("compute.name=faulty", only=(EP,))
    finding = the_finding(verdict, "grouped_experts rounds its gates to bfloat16")
    assert finding.what == "compute 'faulty'"
    assert {"losses", "gradients"} <= different(verdict, EP)


def test_gates_that_a_dispatcher_rounds_are_named(verified: Verified) -> None:
    fault = ("dispatcher.name=faulty", "dispatcher.options.fault=gates in bfloat16")
    verdict = verified(*fault, only=(EP,))
    finding = the_finding(verdict, "gates are rounded to bfloat16 on their way")
    assert finding.what == "dispatcher 'faulty'"
    assert {"losses", "gradients"} <= different(verdict, EP)


def test_stale_rows_after_combine_are_named(verified: Verified) -> None:
    fault = ("dispatcher.name=faulty", "dispatcher.options.fault=adds to stale rows")
    verdict = verified(*fault, only=(EP,))
    finding = the_finding(verdict, "stale rows: combine adds to what an earlier call left in its buffer")
    assert finding.what == "dispatcher 'faulty'"
    assert {"losses", "gradients"} <= different(verdict, EP)


# --- what is lost


def test_a_loss_that_never_arrives_is_named(verified: Verified) -> None:
    verdict = verified("schedule.name=faulty", "schedule.options.fault=loses the loss", only=(ONE, EP))
    finding = the_finding(verdict, "no loss arrives at the rank that reports it")
    assert finding.what == "ce_loss"
    assert needs(verdict, "no loss arrives", "losses")


def test_a_parameter_that_no_rank_has_is_a_difference(verified: Verified) -> None:
    verdict = verified("sharding.name=faulty", "sharding.options.fault=loses the head", only=(EP,))
    assert verdict.exit_code == 1
    (finding,) = verdict.findings
    assert finding.what == "parameters of head.weight"
    assert different(verdict, EP) == {"parameters"}


def test_a_layout_that_cannot_run_is_never_good(verified: Verified) -> None:
    verdict = verified("dispatcher.name=faulty", "dispatcher.options.fault=raises", only=(ONE, EP))
    assert verdict.exit_code == 3
    assert [row.verdict for row in verdict.rows] == ["reference", "NOT RUN", "equal"]
    assert "no route to the experts" in "\n".join(verdict.lines())
