"""DeepSeek-V3 hyper-parameters under their Hugging Face names. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

from moeframe.protocols.paths import path_field

__all__ = ["DeepSeekV3Config", "RopeScaling"]


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """YaRN (arXiv 2309.00071) as DeepSeek configures it."""

    type: Literal["yarn"] = "yarn"
    """The only one."""
    factor: float
    """Context length divided by the original one."""
    original_max_position_embeddings: int
    """Context length, in tokens, of the training before YaRN."""
    beta_fast: float = 32.0
    """Frequencies that turn more often than this within the original context stay as they are."""
    beta_slow: float = 1.0
    """Frequencies that turn less often than this are divided by `factor`; between the two, a ramp."""
    mscale: float = 1.0
    """Weight of ln(factor) in the magnitude of the rotary part, which `mscale_all_dim` divides again."""
    mscale_all_dim: float = 0.0
    """Weight of ln(factor) in the scale of all attention scores; 0: none."""


@dataclass(frozen=True, kw_only=True)
class DeepSeekV3Config:
    """One model of the DeepSeek-V3 family (DeepSeek-V2-Lite and Moonlight included)."""

    family: Literal["deepseek_v3"] = "deepseek_v3"
    """The only one."""
    vocab_size: int
    """Tokens of the vocabulary; the data set must not have more."""
    hidden_size: int
    """Width of the residual stream."""
    num_hidden_layers: int
    """Decoder layers without the MTP modules."""
    first_k_dense_replace: int
    """The first layers, whose feed-forward part is a dense MLP."""
    intermediate_size: int
    """Width of the dense MLP."""
    moe_intermediate_size: int
    """Width of one routed expert."""
    n_routed_experts: int
    """Routed experts of a layer."""
    num_experts_per_tok: int
    """Routed experts that a token is sent to (top-k)."""
    n_shared_experts: int
    """Fused into one MLP of width n_shared_experts x moe_intermediate_size; 0: none."""
    num_attention_heads: int
    """Attention heads."""
    q_lora_rank: int | None
    """Width of the compressed queries; null: queries come straight from the hidden state."""
    kv_lora_rank: int
    """Width of the compressed keys and values (MLA)."""
    qk_nope_head_dim: int
    """Part of a query or key head without rotary positions."""
    qk_rope_head_dim: int
    """Part of a query or key head with rotary positions; even."""
    v_head_dim: int
    """Size of a value head."""
    scoring_func: Literal["sigmoid", "softmax"] = "sigmoid"
    """How the router's logits become scores: sigmoid (V3) or softmax (V2)."""
    topk_method: Literal["noaux_tc", "greedy", "group_limited_greedy"] = "noaux_tc"
    """noaux_tc: bias-corrected, a group's score is the sum of its two best; group_limited_greedy: its best (V2)."""
    n_group: int = 1
    """Groups that the experts are divided into for routing; a divisor of n_routed_experts."""
    topk_group: int = 1
    """Groups that a token may choose its experts from."""
    norm_topk_prob: bool = True
    """Divide the gates of a token by their sum."""
    routed_scaling_factor: float = 1.0
    """Factor of the gates."""
    rope_theta: float = 10000.0
    """Base of the rotary frequencies."""
    rope_scaling: RopeScaling | None = None
    """YaRN; null: plain rotary positions."""
    max_position_embeddings: int
    """Longest sequence that the model is made for; train.seq_len must not exceed it."""
    rms_norm_eps: float = 1e-6
    """Of every norm but the two latent norms inside MLA, which always use 1e-6."""
    initializer_range: float = 0.006
    """Standard deviation of the initial weights (DeepSeek-V3 report, section 4.2)."""
    num_nextn_predict_layers: int = 0
    """MTP modules."""
    mtp_loss_weight: float = 0.3
    """Lambda of the MTP loss (report, equation 25)."""
    aux_loss_alpha: float = 1e-4
    """Alpha of the sequence-wise balance loss (report, equations 17 to 20)."""
    aux_loss_selection: Literal["routed", "scores"] = "routed"
    """What the balance loss counts: the experts a token is sent to, or the top-k of its raw scores (the report)."""
    bias_update_speed: float = 1e-3
    """Gamma: change of the correction bias per step (report, section 2.1.2). 0 freezes the bias."""
    capacity_factor: float | None = None
    """null: no token is dropped. Otherwise an expert takes at most ceil(factor x S x K / E) tokens of a sequence."""
    init_from: str | None = path_field(None)
    """A Hugging Face directory (config.json and safetensors) to start from, relative to the recipe file."""
    init_from_differs: tuple[
        Literal[
            "num_experts_per_tok",
            "scoring_func",
            "n_group",
            "topk_group",
            "norm_topk_prob",
            "routed_scaling_factor",
            "rope_theta",
            "rope_scaling",
            "rms_norm_eps",
        ],
        ...,
    ] = ()
    """Keys of this section that differ from config.json of init_from on purpose; any other difference is refused."""

    @classmethod
    def may_differ(cls) -> tuple[str, ...]:
        """Return what `init_from_differs` may name: keys that change what weights compute, but not which there are."""
        (literal, _) = get_args(get_type_hints(cls)["init_from_differs"])
        names: tuple[str, ...] = get_args(literal)
        return names

    @property
    def qk_head_dim(self) -> int:
        """Size of a query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts, the MTP modules included."""
        return self.num_hidden_layers - self.first_k_dense_replace + self.num_nextn_predict_layers

    def problems(self) -> list[tuple[str, str, str]]:
        """Return which dimensions do not fit together, as (key, what is wrong with its numbers, way out)."""
        found: list[tuple[str, str, str]] = []
        if not 0 <= self.first_k_dense_replace <= self.num_hidden_layers:
            found.append(
                (
                    "first_k_dense_replace",
                    f"{self.first_k_dense_replace} is not within the {self.num_hidden_layers} layers.",
                    f"Use 0 to {self.num_hidden_layers}.",
                )
            )
        if self.qk_rope_head_dim % 2:
            found.append(
                ("qk_rope_head_dim", f"{self.qk_rope_head_dim} is odd; rotations take pairs.", "Use an even number.")
            )
        if self.n_routed_experts % self.n_group:
            found.append(
                (
                    "n_group",
                    f"{self.n_group} does not divide n_routed_experts = {self.n_routed_experts}.",
                    "Use a divisor.",
                )
            )
            return found
        grouped = self.topk_method != "greedy" and self.n_group > 1
        reachable = self.topk_group * (self.n_routed_experts // self.n_group) if grouped else self.n_routed_experts
        if grouped and not 1 <= self.topk_group <= self.n_group:
            found.append(
                (
                    "topk_group",
                    f"{self.topk_group} groups cannot be kept of {self.n_group}.",
                    f"Use 1 to {self.n_group}.",
                )
            )
        elif not 1 <= self.num_experts_per_tok <= reachable:
            found.append(
                (
                    "num_experts_per_tok",
                    f"{self.num_experts_per_tok} experts cannot be chosen of the {reachable} that a token can reach.",
                    f"Use 1 to {reachable}, or more groups.",
                )
            )
        return found
