"""The router: which experts a token goes to, and with what weight (DeepSeek-V3 report, section 2.1.2).

B sequences, S positions, T = B x S tokens, D width, E experts, K experts of a token. Everything is float32 at least.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from moeframe.errors import ContractError
from moeframe.model.balance import balance_sum, inject
from moeframe.model.config import DeepSeekV3Config
from moeframe.model.counters import LayerCounter, recomputing
from moeframe.model.recompute import Decisions
from moeframe.model.step_state import StepState

__all__ = ["Router", "choose_experts", "require_expert_ids", "within_capacity"]


@torch.no_grad()
def choose_experts(scores_TE: torch.Tensor, bias_E: torch.Tensor | None, config: DeepSeekV3Config) -> torch.Tensor:
    """Return the chosen experts (T, K) int64, in no particular order; equal rows get equal choices.

    Experts outside the kept groups get -inf. Old hub code and V2 put 0 there, which differs only where biased scores
    are negative (then 0 wins wrongly), or where softmax scores underflow to 0.
    """
    choice_TE = scores_TE if bias_E is None else scores_TE + bias_E
    if config.topk_method != "greedy" and config.n_group > 1:
        grouped_TGE = torch.unflatten(choice_TE, -1, (config.n_group, -1))
        if config.topk_method == "noaux_tc":
            group_scores_TG = grouped_TGE.topk(min(2, grouped_TGE.shape[-1]), dim=-1, sorted=False).values.sum(-1)
        else:
            group_scores_TG = grouped_TGE.amax(-1)
        kept = group_scores_TG.topk(config.topk_group, dim=-1, sorted=False).indices
        dropped_TG = torch.ones_like(group_scores_TG, dtype=torch.bool).scatter_(-1, kept, False)
        choice_TE = grouped_TGE.masked_fill(dropped_TG.unsqueeze(-1), -math.inf).flatten(-2)
    return choice_TE.topk(config.num_experts_per_tok, dim=-1, sorted=False).indices


def within_capacity(ids_BSK: torch.Tensor, num_experts: int, capacity: int) -> torch.Tensor:
    """Return (B, S, K) bool: false where an expert already has `capacity` earlier tokens of the sequence."""
    sent_BSK = ids_BSK >= 0
    places_BSK = ids_BSK.clamp_min(0)
    chosen_BSE = torch.zeros(*ids_BSK.shape[:2], num_experts, dtype=torch.int32, device=ids_BSK.device)
    # A token chooses an expert once, but unsent assignments share place 0: add, do not overwrite.
    chosen_BSE.scatter_add_(-1, places_BSK, sent_BSK.to(torch.int32))
    order_BSE = chosen_BSE.cumsum(1, dtype=torch.int32)
    return order_BSE.gather(-1, places_BSK) <= capacity


def require_expert_ids(ids_BSK: torch.Tensor, config: DeepSeekV3Config) -> None:
    """Check expert ids that replace the router's choice. On a GPU the check is left out: it would block the host.

    Raises:
        ContractError: wrong shape, an id outside [-1, n_routed_experts), or one expert twice for a token.
    """
    top_k, num_experts = config.num_experts_per_tok, config.n_routed_experts
    if ids_BSK.shape[-1] != top_k:
        raise ContractError(f"Forced expert ids have {ids_BSK.shape[-1]} choices a token; the model wants {top_k}.")
    if ids_BSK.device.type != "cpu":
        return
    ids_TK = ids_BSK.reshape(-1, top_k)
    for wrong_TK, rule in (
        ((ids_TK < -1) | (ids_TK >= num_experts), f"ids lie in [0, {num_experts}), or are -1 for no expert"),
        (_repeated(ids_TK), "the experts of a token are distinct"),
    ):
        if wrong_TK.any():
            token, choice = (int(place) for place in wrong_TK.nonzero()[0])
            raise ContractError(f"Forced expert ids: token {token} names expert {int(ids_TK[token, choice])}; {rule}.")


def _repeated(ids_TK: torch.Tensor) -> torch.Tensor:
    same_TKK = (ids_TK.unsqueeze(-1) == ids_TK.unsqueeze(-2)) & (ids_TK >= 0).unsqueeze(-1)
    return same_TKK.tril(-1).any(-1)


class Router(nn.Module):
    """Scores every expert for every token and keeps the best.

    `e_score_correction_bias` (with topk_method noaux_tc) is a persistent buffer without gradient. It stays in float32
    at least, whatever the model is converted to: in bfloat16 its steps of 1e-3 would be lost.
    """

    def __init__(
        self, config: DeepSeekV3Config, *, dtype: torch.dtype, state: StepState, counter: LayerCounter
    ) -> None:
        super().__init__()
        self._config = config
        self._state = state
        self._counter = counter
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size, dtype=dtype))
        self.e_score_correction_bias: torch.Tensor | None
        if config.topk_method == "noaux_tc":
            self.register_buffer("e_score_correction_bias", torch.empty(config.n_routed_experts, dtype=dtype))
        else:
            self.e_score_correction_bias = None

    def forward(
        self,
        x_BSD: torch.Tensor,
        valid_BS: torch.Tensor | None,
        forced_BSK: torch.Tensor | None,
        decisions: Decisions | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Route every token.

        Args:
            x_BSD: normed input.
            valid_BS: false for padding, which goes nowhere; None: no padding.
            forced_BSK: expert ids in place of the router's choice; gates still come from the scores.
            decisions: of the forward, when this call recomputes it: the same experts are chosen, whatever the scores.

        Returns:
            Expert ids (T, K) int64, -1 where nothing is sent (padding, over capacity), and gates (T, K), at least
            float32, 0 there.
        """
        config = self._config
        made = Decisions() if decisions is None else decisions
        batch, length, _ = x_BSD.shape
        scores_TE = self._scores(x_BSD.flatten(0, 1))
        if forced_BSK is None:
            ids_TK = made.once("experts", lambda: choose_experts(scores_TE, self.e_score_correction_bias, config))
        else:
            ids_TK = forced_BSK.flatten(0, 1)
        if valid_BS is not None:
            ids_TK = ids_TK.masked_fill(~valid_BS.reshape(-1, 1), -1)
        complete = forced_BSK is None and valid_BS is None
        places_TK = ids_TK if complete else ids_TK.clamp_min(0)

        wanted_TK = ids_TK
        dropped: torch.Tensor | None = None
        if config.capacity_factor is not None:
            room = math.ceil(config.capacity_factor * length * config.num_experts_per_tok / config.n_routed_experts)
            kept_BSK = within_capacity(ids_TK.view(batch, length, -1), config.n_routed_experts, room)
            ids_TK = ids_TK.masked_fill(~kept_BSK.flatten(0, 1), -1)
            dropped = (wanted_TK != ids_TK).sum()

        scores_TE = self._balanced(scores_TE, wanted_TK, places_TK, (batch, length), valid_BS, dropped, made)
        gates_TK = scores_TE.gather(-1, places_TK)
        if not complete:
            gates_TK = torch.where(wanted_TK >= 0, gates_TK, 0)
        if config.norm_topk_prob:
            gates_TK = gates_TK / (gates_TK.sum(-1, keepdim=True) + 1e-20)
        gates_TK = gates_TK * config.routed_scaling_factor
        if dropped is not None:
            gates_TK = torch.where(ids_TK >= 0, gates_TK, 0)
        return ids_TK, gates_TK

    def _scores(self, x_TD: torch.Tensor) -> torch.Tensor:
        high = torch.promote_types(x_TD.dtype, torch.float32)
        logits_TE = F.linear(x_TD.to(high), self.weight.to(high))
        return logits_TE.sigmoid() if self._config.scoring_func == "sigmoid" else logits_TE.softmax(-1)

    def _balanced(
        self,
        scores_TE: torch.Tensor,
        ids_TK: torch.Tensor,
        places_TK: torch.Tensor,
        sequences: tuple[int, int],
        valid_BS: torch.Tensor | None,
        dropped: torch.Tensor | None,
        made: Decisions,
    ) -> torch.Tensor:
        """Count, and return the scores with the gradient of the balance loss behind them."""
        config, state = self._config, self._state
        if not self.training:
            return scores_TE
        counting = state.counting and not recomputing()
        injecting = torch.is_grad_enabled() and state.balance_scale > 0 and config.aux_loss_alpha > 0
        if not (counting or injecting):
            return scores_TE
        counts_BE = self._counts(ids_TK, places_TK, sequences[0])
        balance: torch.Tensor | None = None
        if config.aux_loss_alpha > 0:
            selected_BE = (
                counts_BE
                if config.aux_loss_selection == "routed"
                else made.once("raw counts", lambda: self._raw_counts(scores_TE, valid_BS, sequences[0]))
            )
            # Counting alone must leave no trace in the graph: a recomputation does not count.
            with torch.set_grad_enabled(injecting):
                balance = balance_sum(
                    torch.unflatten(scores_TE, 0, sequences),
                    selected_BE,
                    valid_BS,
                    top_k=config.num_experts_per_tok,
                    alpha=config.aux_loss_alpha,
                )
            if injecting:
                scores_TE = inject(scores_TE, balance * state.balance_scale)
        if counting:
            self._counter.add(counts_BE.sum(0), balance, dropped)
        return scores_TE

    @torch.no_grad()
    def _raw_counts(self, scores_TE: torch.Tensor, valid_BS: torch.Tensor | None, batch: int) -> torch.Tensor:
        """Count the top-k of the raw scores, as the report's equation 18 does."""
        best_TK = scores_TE.topk(self._config.num_experts_per_tok, dim=-1, sorted=False).indices
        ids_TK = best_TK if valid_BS is None else best_TK.masked_fill(~valid_BS.reshape(-1, 1), -1)
        return self._counts(ids_TK, best_TK, batch)

    def _counts(self, ids_TK: torch.Tensor, places_TK: torch.Tensor, batch: int) -> torch.Tensor:
        """Return tokens per sequence and expert, (B, E) int64; ids of -1 count nowhere."""
        counts_BE = torch.zeros(batch, self._config.n_routed_experts, dtype=torch.int64, device=ids_TK.device)
        return counts_BE.scatter_add_(1, places_TK.reshape(batch, -1), (ids_TK >= 0).to(torch.int64).view(batch, -1))

    def take_bias_step(self, counts_E: torch.Tensor) -> None:
        """Move the bias towards balance: ``b += gamma * sign(mean load - load)``.

        Args:
            counts_E: tokens of each expert over the whole global batch, int64.
        """
        if self.e_score_correction_bias is None or not self._config.bias_update_speed:
            return
        # sum - E x load has the sign of mean - load, exactly.
        direction_E = (counts_E.sum() - counts_E * counts_E.shape[0]).sign()
        bias_E = self.e_score_correction_bias
        bias_E.add_(direction_E.to(bias_E.dtype), alpha=self._config.bias_update_speed)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Router:  # noqa: FBT001, FBT002
        """Convert as nn.Module does, but keep the bias's float32 bits when it would get a smaller dtype."""
        before = self.e_score_correction_bias
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        after = self.e_score_correction_bias
        if before is not None and after is not None and torch.promote_types(after.dtype, torch.float32) != after.dtype:
            self.e_score_correction_bias = before.to(after.device)
        return self
