"""What the model must compute whatever the layout, written anew from the report: routing, losses, loads, bias steps.

A layout is compared with one process; a fault that both share shows only here. B sequences, S positions, T = B x S
tokens, E experts, K experts of a token, L MoE layers. Sources: DeepSeek-V3 report, sections 2.1.2 and 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy
import torch
from torch import nn

from moeframe.model.config import DeepSeekV3Config
from moeframe.model.counters import recomputing
from moeframe.model.router import Router
from moeframe.protocols.data import IGNORED
from moeframe.verify.records import Array, FormulaFinding, Sequences
from moeframe.verify.reference.schedule import Seen

__all__ = ["RouterWatch", "bias_findings", "load_findings", "loss_findings", "sequences_of"]

_CLOSE: Final = 1e-9
_Rule = Callable[[torch.Tensor, torch.Tensor, DeepSeekV3Config], torch.Tensor]


@dataclass
class _Tally:
    """What one layer's formula counts: tokens of each expert (E,); of each sequence, balance loss times tokens."""

    tokens_E: torch.Tensor
    balance: list[torch.Tensor]


class RouterWatch:
    """Recomputes every routing of a model by the formula, as it happens; a recomputation is looked at, not counted."""

    def __init__(self, model: nn.Module) -> None:
        """Watch all routers; of a sharded model while their weights are gathered."""
        self.findings: dict[str, FormulaFinding] = {}
        self._tallies: dict[str, _Tally] = {}
        for name, module in model.named_modules():
            if isinstance(module, Router):
                self._watch(name, module)

    def take(self) -> tuple[dict[str, Array], Array]:
        """Return the tokens of each expert by router, and the balance sums of each sequence over all layers; reset.

        Sequences are in the order of the forwards.
        """
        tokens = {name: tally.tokens_E.numpy().copy() for name, tally in self._tallies.items()}
        balance: Array = sum((torch.cat(tally.balance).numpy() for tally in self._tallies.values()), numpy.zeros(1))
        for tally in self._tallies.values():
            tally.tokens_E.zero_()
            tally.balance.clear()
        return tokens, balance

    def _watch(self, name: str, router: Router) -> None:
        config: DeepSeekV3Config = router._config  # noqa: SLF001  the router has no other word for it
        tally = _Tally(torch.zeros(config.n_routed_experts, dtype=torch.int64), [])
        self._tallies[name] = tally

        @torch.no_grad()
        def after(module: Router, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, torch.Tensor]) -> None:
            x_BSD, valid_BS, forced_BSK, *_ = inputs
            scores_TE = _scores(x_BSD.flatten(0, 1), module.weight, config)
            bias = module.e_score_correction_bias
            bias_E = torch.zeros_like(scores_TE[0]) if bias is None else bias
            wanted_TK = _chosen(_choice_scores(scores_TE, bias_E, config), config)
            if forced_BSK is not None:
                wanted_TK = forced_BSK.flatten(0, 1)
            if valid_BS is not None:
                wanted_TK = wanted_TK.masked_fill(~valid_BS.reshape(-1, 1), -1)
            self._compare(name, (scores_TE, bias_E, wanted_TK), outputs, config, x_BSD.shape[:2])
            if not recomputing():
                _count(tally, scores_TE, wanted_TK, x_BSD.shape[:2], config)

        router.register_forward_hook(after, prepend=True)  # before a sharding frees the weight

    def _compare(
        self,
        name: str,
        expected: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        outputs: tuple[torch.Tensor, torch.Tensor],
        config: DeepSeekV3Config,
        shape: tuple[int, int],
    ) -> None:
        scores_TE, _, wanted_TK = expected
        ids_TK, gates_TK = outputs
        kept_TK = _within_capacity(wanted_TK, shape, config)
        want, got = _weights(kept_TK, scores_TE, wanted_TK, config), _spread(ids_TK, gates_TK, config)
        if torch.allclose(got, want, rtol=_CLOSE, atol=_CLOSE):
            return
        routing = expected[:2]
        key = next((key for key, rule in _ROUTINGS.items() if _explains(rule, routing, outputs, config)), "routing")
        token = int((got - want).abs().amax(1).argmax())
        observed, wished = (
            " ".join(f"{expert}:{float(row[expert]):.4f}" for expert in row.nonzero().flatten().tolist()) or "none"
            for row in (got[token], want[token])
        )
        finding = FormulaFinding(
            key=key, what=f"{name}, token {token}: experts and gates", observed=observed, expected=wished
        )
        self.findings.setdefault(key, finding)


def _scores(x_TD: torch.Tensor, weight_ED: torch.Tensor, config: DeepSeekV3Config) -> torch.Tensor:
    logits_TE = x_TD @ weight_ED.T
    return 1 / (1 + torch.exp(-logits_TE)) if config.scoring_func == "sigmoid" else torch.softmax(logits_TE, -1)


def _choice_scores(
    scores_TE: torch.Tensor, bias_E: torch.Tensor, config: DeepSeekV3Config, outside: float = -math.inf
) -> torch.Tensor:
    """Return the scores that experts are chosen by (T, E); `outside` for those of groups that are not kept."""
    biased_TE = scores_TE + bias_E
    if config.topk_method == "greedy" or config.n_group == 1:
        return biased_TE
    size = config.n_routed_experts // config.n_group
    best = 2 if config.topk_method == "noaux_tc" else 1
    groups = [biased_TE[:, g * size : (g + 1) * size].topk(best, -1).values.sum(-1) for g in range(config.n_group)]
    order_TG = torch.stack(groups, -1).argsort(-1, descending=True)
    keep_TE = torch.zeros_like(biased_TE, dtype=torch.bool)
    for place in range(config.topk_group):
        first_T = order_TG[:, place] * size
        for offset in range(size):
            keep_TE[torch.arange(len(keep_TE)), first_T + offset] = True
    return torch.where(keep_TE, biased_TE, outside)


def _chosen(choice_TE: torch.Tensor, config: DeepSeekV3Config) -> torch.Tensor:
    """Return the K best (T, K)."""
    return choice_TE.argsort(-1, descending=True)[:, : config.num_experts_per_tok]


def _within_capacity(wanted_TK: torch.Tensor, shape: tuple[int, int], config: DeepSeekV3Config) -> torch.Tensor:
    """Return (T, K) ids, -1 where an expert has had its share of the sequence's tokens."""
    if config.capacity_factor is None:
        return wanted_TK
    share = config.capacity_factor * shape[1] * config.num_experts_per_tok / config.n_routed_experts
    room, kept_BSK = math.ceil(share), wanted_TK.clone().view(*shape, -1)
    for sequence in kept_BSK:
        taken = [0] * config.n_routed_experts
        for token in sequence:
            for choice, expert in enumerate(token.tolist()):
                if expert >= 0 and taken[expert] >= room:
                    token[choice] = -1
                elif expert >= 0:
                    taken[expert] += 1
    return kept_BSK.flatten(0, 1)


def _spread(ids_TK: torch.Tensor, gates_TK: torch.Tensor, config: DeepSeekV3Config) -> torch.Tensor:
    """Return gates by expert (T, E), so that the order of choices does not matter."""
    spread_TE = torch.zeros(len(ids_TK), config.n_routed_experts, dtype=torch.float64)
    return spread_TE.scatter_add_(1, ids_TK.clamp_min(0), torch.where(ids_TK >= 0, gates_TK, 0).double())


def _weights(
    kept_TK: torch.Tensor, gate_scores_TE: torch.Tensor, wanted_TK: torch.Tensor, config: DeepSeekV3Config
) -> torch.Tensor:
    """Return the gates by expert (T, E) of these choices; normed over those before capacity."""
    gates_TK = torch.where(wanted_TK >= 0, gate_scores_TE.gather(1, wanted_TK.clamp_min(0)), 0)
    if config.norm_topk_prob:
        gates_TK = gates_TK / (gates_TK.sum(-1, keepdim=True) + 1e-20)
    return _spread(kept_TK, gates_TK * config.routed_scaling_factor, config)


def _zero_mask(scores_TE: torch.Tensor, bias_E: torch.Tensor, config: DeepSeekV3Config) -> torch.Tensor:
    return _choice_scores(scores_TE, bias_E, config, outside=0.0)


def _no_groups(scores_TE: torch.Tensor, bias_E: torch.Tensor, config: DeepSeekV3Config) -> torch.Tensor:  # noqa: ARG001
    return scores_TE + bias_E


def _no_bias(scores_TE: torch.Tensor, bias_E: torch.Tensor, config: DeepSeekV3Config) -> torch.Tensor:
    return _choice_scores(scores_TE, torch.zeros_like(bias_E), config)


_ROUTINGS: Final[Mapping[str, tuple[_Rule, bool]]] = {
    "biased gates": (_choice_scores, True),
    "group mask with 0": (_zero_mask, False),
    "groups ignored": (_no_groups, False),
    "bias ignored": (_no_bias, False),
}
"""Wrong routings by name: the scores that experts are chosen by, and whether gates come from biased scores."""


def _explains(
    rule: tuple[_Rule, bool],
    routing: tuple[torch.Tensor, torch.Tensor],
    outputs: tuple[torch.Tensor, torch.Tensor],
    config: DeepSeekV3Config,
) -> bool:
    """Say whether a wrong rule gives this routing; equal scores may be chosen in any way."""
    scores_TE, bias_E = routing
    ids_TK, gates_TK = outputs
    choose, biased = rule
    choice_TE, sent_TK = choose(scores_TE, bias_E, config), ids_TK >= 0
    last_T1 = choice_TE.topk(config.num_experts_per_tok, -1).values.amin(-1, keepdim=True)
    if not (choice_TE.gather(1, ids_TK.clamp_min(0)) >= last_T1)[sent_TK].all():
        return False
    if config.capacity_factor is not None:
        return not biased  # gates are normed over choices that are gone
    gate_scores_TE = scores_TE + bias_E if biased else scores_TE
    want_TE, got_TE = _weights(ids_TK, gate_scores_TE, ids_TK, config), _spread(ids_TK, gates_TK, config)
    return torch.allclose(got_TE, want_TE, rtol=_CLOSE, atol=_CLOSE)


def _count(
    tally: _Tally, scores_TE: torch.Tensor, wanted_TK: torch.Tensor, shape: tuple[int, int], config: DeepSeekV3Config
) -> None:
    """Add loads, and n x L of each sequence (report, equations 17 to 20)."""
    ids_BSK, scores_BSE = wanted_TK.view(*shape, -1), scores_TE.view(*shape, -1)
    balance = []
    for ids_SK, scores_SE in zip(ids_BSK, scores_BSE, strict=True):
        there_S = (ids_SK >= 0).any(-1)
        count_E = torch.bincount(ids_SK[ids_SK >= 0], minlength=config.n_routed_experts)
        tally.tokens_E += count_E
        tokens = int(there_S.sum())
        counted_E = count_E
        if config.aux_loss_selection == "scores":
            best_SK = scores_SE[there_S].argsort(-1, descending=True)[:, : config.num_experts_per_tok]
            counted_E = torch.bincount(best_SK.flatten(), minlength=config.n_routed_experts)
        f_E = counted_E.double() * config.n_routed_experts / (config.num_experts_per_tok * max(tokens, 1))
        shares_SE = scores_SE[there_S] / scores_SE[there_S].sum(-1, keepdim=True)
        p_E = shares_SE.sum(0) / max(tokens, 1)
        balance.append(config.aux_loss_alpha * (f_E * p_E).sum() * tokens)
    tally.balance.append(torch.stack(balance).double())


def sequences_of(seen: Sequence[Seen], balance_B: Array) -> Sequences:
    """Return sums and tokens of each sequence from the logits of one step: cross-entropies in natural logarithms."""
    sums: dict[str, list[float]] = {}
    tokens: dict[str, list[int]] = {}
    valid: list[int] = []
    for batch, logits, _ in seen:
        there_BS = torch.ones_like(batch.input_ids, dtype=torch.bool) if batch.valid is None else batch.valid
        valid += there_BS.sum(1).tolist()
        targets = (batch.targets, *batch.mtp_targets)
        for depth, (part_BSV, target_BS) in enumerate(zip(logits, targets, strict=True)):
            name = f"mtp {depth}" if depth else "ce"
            logs_BSV = part_BSV - torch.logsumexp(part_BSV, -1, keepdim=True)
            for logs_SV, target_S in zip(logs_BSV, target_BS, strict=True):
                counts_S = target_S != IGNORED
                picked = logs_SV[counts_S, target_S[counts_S]]
                sums.setdefault(name, []).append(-float(picked.sum()))
                tokens.setdefault(name, []).append(int(counts_S.sum()))
    found_sums = {name: numpy.asarray(values) for name, values in sums.items()}
    found_tokens = {name: numpy.asarray(values) for name, values in tokens.items()}
    return Sequences(
        sums={**found_sums, "balance": balance_B + numpy.zeros(len(valid))},
        tokens={**found_tokens, "balance": numpy.asarray(valid)},
    )


def loss_findings(
    sequences: Sequences, losses: Mapping[str, float], backward_loss: float, config: DeepSeekV3Config
) -> list[FormulaFinding]:
    """Compare the losses of one process with ``CE + lambda / D sum CE_d`` and the balance loss."""
    means = {name: _mean(sequences, name) for name in sequences.sums}
    depths = [mean for name, mean in means.items() if name.startswith("mtp")]
    mtp = sum(depths) / len(depths) if depths else 0.0
    expected = {"ce_loss": means["ce"], "mtp_loss": mtp, "balance_loss": means["balance"]}
    findings = [
        FormulaFinding(key=name, what=name, observed=f"{losses[name]:.9f}", expected=f"{wanted:.9f}")
        for name, wanted in expected.items()
        if not math.isclose(losses[name], wanted, rel_tol=_CLOSE, abs_tol=1e-12)
    ]
    wanted = means["ce"] + config.mtp_loss_weight * mtp
    if not math.isclose(backward_loss, wanted, rel_tol=_CLOSE):
        findings.append(
            FormulaFinding(
                key="backward",
                what="the loss whose backward runs",
                observed=f"{backward_loss:.9f}",
                expected=f"{wanted:.9f}",
            )
        )
    return findings


def _mean(sequences: Sequences, name: str) -> float:
    tokens = int(sequences.tokens[name].sum())
    return float(sequences.sums[name].sum()) / tokens if tokens else 0.0


def load_findings(loads_LE: Array, expected_LE: Array) -> list[FormulaFinding]:
    """Compare what the job counted with the routings that were seen."""
    if numpy.array_equal(loads_LE, expected_LE):
        return []
    total, wanted = int(loads_LE.sum()), int(expected_LE.sum())
    ratio = total / wanted if wanted else math.inf
    key = "loads twice" if numpy.array_equal(loads_LE, 2 * expected_LE) else "loads"
    return [
        FormulaFinding(
            key=key,
            what="tokens of each expert, summed",
            observed=f"{total} (x{ratio:.3f})",
            expected=f"{wanted}",
        )
    ]


def bias_findings(
    before: Mapping[str, Array], after: Mapping[str, Array], loads: Mapping[str, Array], speed: float
) -> list[FormulaFinding]:
    """Compare the biases with ``b += gamma sign(mean load - load)`` of the step's global loads; all by buffer name."""
    findings = []
    for name, old_E in before.items():
        load_E = loads[name]
        wanted_E = old_E + speed * numpy.sign(load_E.mean() - load_E)
        if not numpy.allclose(after[name], wanted_E, rtol=0, atol=1e-12):
            expert = int(numpy.abs(after[name] - wanted_E).argmax())
            findings.append(
                FormulaFinding(
                    key="bias step",
                    what=f"{name}, expert {expert}: change of the correction bias",
                    observed=f"{after[name][expert] - old_E[expert]:+.6f}",
                    expected=f"{wanted_E[expert] - old_E[expert]:+.6f}",
                )
            )
    return findings
