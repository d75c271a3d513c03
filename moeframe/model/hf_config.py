"""config.json of a Hugging Face directory -> `DeepSeekV3Config`, in the hub's spelling and in that of transformers 5.

Importable without torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from moeframe.errors import UserInputError
from moeframe.model.config import DeepSeekV3Config, RopeScaling

__all__ = ["HfDirectoryConfig", "parse_hf_config", "read_hf_config"]

FAMILY_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True},
    "deepseek_v2": {"scoring_func": "softmax", "topk_method": "greedy", "norm_topk_prob": False},
}
"""What the published code of a model_type does when config.json does not say."""

REQUIRED_VALUES: Final[Mapping[str, Any]] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "mlp_bias": False,
    "moe_layer_freq": 1,
    "rope_interleave": True,
    "tie_word_embeddings": False,
}
"""Settings that change the computation and have one value here; a config without the key means this value."""

RENAMED: Final[Mapping[str, str]] = {"num_mtp_layers": "num_nextn_predict_layers"}
NULL_MEANS: Final[Mapping[str, Any]] = {"n_group": 1, "topk_group": 1, "n_shared_experts": 0}
ABSENT_MEANS: Final[Mapping[str, Any]] = {"first_k_dense_replace": 0, "n_shared_experts": 0, "q_lora_rank": None}
OWN_FIELDS: Final = ("family", "init_from", "init_from_differs", "rope_scaling", "rope_theta")
"""Fields of `DeepSeekV3Config` that are not read by name."""


@dataclass(frozen=True, kw_only=True)
class HfDirectoryConfig:
    """What config.json says: the model, the dtype it names, the block shape of FP8 weights if there are any.

    `given` holds the keys of the file: what is not among them has a default here.
    """

    model: DeepSeekV3Config
    dtype: str | None
    fp8_block: tuple[int, int] | None
    given: frozenset[str] = field(default=frozenset(), compare=False)


def read_hf_config(directory: Path) -> HfDirectoryConfig:
    """Read config.json.

    Raises:
        UserInputError: the file is missing or unreadable, or the model is not one that moeframe computes; names
            everything that is wrong.
    """
    path = directory / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserInputError(f"{path}: cannot be read ({error.strerror}). Name a Hugging Face directory.") from error
    except ValueError as error:
        raise UserInputError(f"{path}: is not JSON ({error}).") from error
    if not isinstance(values, dict):
        raise UserInputError(f"{path}: must hold a JSON object, not {type(values).__name__}.")
    return parse_hf_config(values, where=str(path))


def parse_hf_config(values: Mapping[str, Any], *, where: str) -> HfDirectoryConfig:
    """Translate the content of a config.json; `where` names it in errors. See `read_hf_config`."""
    problems: list[str] = []
    family = values.get("model_type")
    if not isinstance(family, str) or family not in FAMILY_DEFAULTS:
        raise UserInputError(f"{where}: model_type = {family!r}. Supported: {', '.join(sorted(FAMILY_DEFAULTS))}.")
    problems += _unsupported(values)
    arguments = _by_name({**FAMILY_DEFAULTS[family], **values}, problems)
    arguments["rope_theta"], arguments["rope_scaling"] = _rope(values, problems)
    block = _fp8_block(values.get("quantization_config"), problems)
    model: DeepSeekV3Config | None = None
    if not problems:
        model = DeepSeekV3Config(**arguments)
        problems += [f"{key}: {message} {fix}" for key, message, fix in model.problems()]
    if problems or model is None:
        raise UserInputError(f"{where}: " + "; ".join(problems))
    dtype = values.get("dtype", values.get("torch_dtype"))
    return HfDirectoryConfig(model=model, dtype=dtype, fp8_block=block, given=frozenset(values))


def _unsupported(values: Mapping[str, Any]) -> list[str]:
    wrong = [
        f"{key} = {values[key]!r} is not supported, only {supported!r}"
        for key, supported in REQUIRED_VALUES.items()
        if values.get(key) is not None and values[key] != supported
    ]
    heads, kv_heads = values.get("num_attention_heads"), values.get("num_key_value_heads")
    if kv_heads is not None and kv_heads != heads:
        wrong.append(f"num_key_value_heads = {kv_heads} must equal num_attention_heads = {heads}")
    return wrong


def _by_name(values: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the constructor arguments that have the same name on the hub."""
    given = {RENAMED.get(key, key): value for key, value in values.items()}
    arguments: dict[str, Any] = {}
    for spec in fields(DeepSeekV3Config):
        name = spec.name
        if name in OWN_FIELDS:
            continue
        value = given.get(name, ABSENT_MEANS.get(name, MISSING))
        if value is None:
            value = NULL_MEANS.get(name)
        if value is MISSING:
            if spec.default is MISSING:
                problems.append(f"{name} is missing")
            continue
        arguments[name] = value
    for name in ("scoring_func", "topk_method"):
        legal = {"scoring_func": ("sigmoid", "softmax"), "topk_method": ("noaux_tc", "greedy", "group_limited_greedy")}
        if arguments[name] not in legal[name]:
            problems.append(f"{name} = {arguments[name]!r} is not one of {', '.join(legal[name])}")
    return arguments


def _rope(values: Mapping[str, Any], problems: list[str]) -> tuple[float, RopeScaling | None]:
    """Read theta and YaRN from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (hub)."""
    section = values.get("rope_parameters") or values.get("rope_scaling") or {}
    theta = section.get("rope_theta", values.get("rope_theta", 10000.0))
    kind = section.get("rope_type", section.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "yarn":
        problems.append(f"rope type {kind!r} is not supported, only 'default' and 'yarn'")
        return theta, None
    if section.get("attention_factor") is not None:
        problems.append("rope attention_factor is not supported: mscale and mscale_all_dim say the same")
    known = {spec.name for spec in fields(RopeScaling)} - {"type"}
    arguments = {key: section[key] for key in known if section.get(key) is not None}
    missing = [key for key in ("factor", "original_max_position_embeddings") if key not in arguments]
    if missing:
        problems.append(f"yarn needs {' and '.join(missing)}")
        return theta, None
    return theta, RopeScaling(**arguments)


def _fp8_block(section: Mapping[str, Any] | None, problems: list[str]) -> tuple[int, int] | None:
    if section is None:
        return None
    method, block = section.get("quant_method"), section.get("weight_block_size")
    if method != "fp8" or not isinstance(block, list) or len(block) != 2:
        problems.append(
            f"quantization_config with quant_method = {method!r} and weight_block_size = {block!r} is not supported, "
            "only block-wise 'fp8'"
        )
        return None
    return int(block[0]), int(block[1])


def differences(one: DeepSeekV3Config, other: DeepSeekV3Config) -> dict[str, tuple[Any, Any]]:
    """Return the fields that change what a forward computes and differ, with both values."""
    training = {
        "initializer_range",
        "aux_loss_alpha",
        "aux_loss_selection",
        "bias_update_speed",
        "mtp_loss_weight",
        "capacity_factor",
        "init_from",
        "init_from_differs",
        "max_position_embeddings",
        "num_nextn_predict_layers",
    }
    first, second = asdict(one), asdict(other)
    return {key: (first[key], second[key]) for key in first if key not in training and first[key] != second[key]}
