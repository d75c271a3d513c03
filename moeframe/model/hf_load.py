"""Weights from a Hugging Face directory, tensor by tensor: only what the asking rank holds is read."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open

from moeframe.errors import UserInputError
from moeframe.model.config import DeepSeekV3Config
from moeframe.model.hf_config import differences, read_hf_config
from moeframe.model.hf_names import Target, hub_copies, hub_targets

__all__ = ["HfSource", "dequantize"]

logger = logging.getLogger(__name__)

INDEX: Final = "model.safetensors.index.json"
SCALE_SUFFIX: Final = "_scale_inv"
IGNORED_NAMES: Final = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Tables that old files carry; they are computed here."""
WEIGHT_PREFIXES: Final = ("model.", "lm_head.")
"""Without an index, a file with no name like these is no part of the model."""
SHOWN_NAMES: Final = 8


def dequantize(weight: torch.Tensor, scale_inv: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Return an FP8 weight (O, I) in float32: each block times its scale (a multiplier, despite the hub's name).

    Args:
        weight: FP8.
        scale_inv: (ceil(O / block rows), ceil(I / block columns)), float32 or UE8M0; edge blocks are partial.
        block: rows and columns of a block.

    Raises:
        ValueError: the scale does not have a value for each block.
    """
    rows, columns = weight.shape
    wanted = (-(-rows // block[0]), -(-columns // block[1]))
    if tuple(scale_inv.shape) != wanted:
        raise ValueError(f"scales of shape {tuple(scale_inv.shape)} for {wanted} blocks")
    scales = scale_inv.to(torch.float32)
    scales = scales.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    return weight.to(torch.float32) * scales


class HfSource:
    """Fills a model from config.json and safetensors in the hub's naming (see `moeframe.model.plan.Weights`).

    Args:
        directory: holds config.json and either `model.safetensors.index.json` with the files it names, or any
            number of safetensors files.
        config: the model to fill; None: the one that config.json describes.

    Attributes:
        config: the model it fills.
        directory_config: what config.json says.
        skipped: tensors that are there and left out on purpose: MTP modules that the model does not have.

    Raises:
        UserInputError: files, or tensors of this model, are missing, or there are tensors that it does not know.
    """

    def __init__(self, directory: str | Path, config: DeepSeekV3Config | None = None) -> None:
        self._directory = Path(directory)
        self.directory_config = read_hf_config(self._directory)
        self.config = self.directory_config.model if config is None else config
        for key, (wanted, found) in differences(self.config, self.directory_config.model).items():
            logger.warning("%s: config.json has %s = %r, the model uses %r", directory, key, found, wanted)
        self._files = _files_of_tensors(self._directory)
        self._open: dict[str, Any] = {}
        targets = hub_targets(self.config)
        self._copies = {name: of for name, of in hub_copies(self.config).items() if name in self._files}
        self.skipped = self._check_names(targets)
        self._hub_names: dict[str, list[tuple[str, Target]]] = {}
        for hub, target in targets.items():
            self._hub_names.setdefault(target.name, []).append((hub, target))

    def _check_names(self, targets: dict[str, Target]) -> tuple[str, ...]:
        """Compare names; return those that are skipped on purpose."""
        found = self._files.keys()
        if not found & targets.keys():
            raise UserInputError(
                f"{self._directory}: none of its {len(found)} tensors belongs to this model. It has "
                f"{_some(found)}; the model has {_some(targets)}."
            )
        if missing := [name for name in targets if name not in found]:
            raise UserInputError(f"{self._directory}: {len(missing)} tensors are missing: {_some(missing)}.")
        spare = re.compile(r"(model\.layers\.\d+)\.eh_proj\.weight")
        modules = tuple(f"{match[1]}." for name in found if (match := spare.fullmatch(name)) and name not in targets)
        rest = [name for name in found if not self._is_known(name, targets)]
        skipped = tuple(name for name in rest if name.startswith(modules)) if modules else ()
        if unknown := sorted(set(rest) - set(skipped)):
            raise UserInputError(
                f"{self._directory}: {len(unknown)} tensors are unknown: {_some(unknown)}. Check that the model's "
                f"dimensions (num_hidden_layers = {self.config.num_hidden_layers}, n_routed_experts = "
                f"{self.config.n_routed_experts}) are those of the files."
            )
        if skipped:
            logger.warning(
                "%s: skipping %d tensors of MTP modules (%s), because num_nextn_predict_layers is %d",
                self._directory,
                len(skipped),
                ", ".join(module.rstrip(".") for module in modules),
                self.config.num_nextn_predict_layers,
            )
        return skipped

    def _is_known(self, name: str, targets: dict[str, Target]) -> bool:
        weight = name.removesuffix(SCALE_SUFFIX)
        return weight in targets or weight in self._copies or IGNORED_NAMES.fullmatch(name) is not None

    @torch.no_grad()
    def fill_(self, name: str, tensor: torch.Tensor, *, first_expert: int | None) -> None:
        """Fill the tensor of this name in place; see `moeframe.model.plan.Weights`.

        Raises:
            UserInputError: a tensor has another shape, an FP8 weight has no scale, or the copies of embedding and
                head in an MTP module differ from the model's.
        """
        if name.endswith(".eh_proj.weight"):
            self._check_copies(name)
        for hub, target in self._hub_names[name]:
            into = tensor
            if target.expert is not None:
                assert first_expert is not None
                local = target.expert - first_expert
                if not 0 <= local < tensor.shape[0]:
                    continue
                into = tensor[local]
                if target.part != "all":
                    into = into.chunk(2)[target.part == "up"]
            value = self._read(hub)
            if value.shape != into.shape:
                raise UserInputError(
                    f"{self._where(hub)}: {hub} has shape {tuple(value.shape)}, the model wants {tuple(into.shape)}. "
                    "Use the dimensions of config.json."
                )
            into.copy_(value)

    def _check_copies(self, name: str) -> None:
        """Compare an MTP module's own embedding and head, where the files have them, with the model's."""
        module = self._hub_names[name][0][0].removesuffix("eh_proj.weight")
        for copy, original in self._copies.items():
            if copy.startswith(module) and not torch.equal(self._read(copy), self._read(original)):
                raise UserInputError(
                    f"{self._where(copy)}: {copy} differs from {original}, but MTP modules share it with the model. "
                    "Set num_nextn_predict_layers to 0 to leave the module out."
                )

    def _read(self, hub: str) -> torch.Tensor:
        """Return one tensor on the CPU, dequantised."""
        value = self._stored(hub)
        if value.dtype != torch.float8_e4m3fn:
            return value
        scale, block = f"{hub}{SCALE_SUFFIX}", self.directory_config.fp8_block
        if scale not in self._files:
            raise UserInputError(f"{self._where(hub)}: {hub} is FP8, and its scale {scale} is missing.")
        if block is None:
            raise UserInputError(f"{self._where(hub)}: {hub} is FP8, but config.json has no quantization_config.")
        try:
            return dequantize(value, self._stored(scale), block)
        except ValueError as error:
            raise UserInputError(f"{self._where(scale)}: {scale} has {error} of {block}.") from error

    def _stored(self, hub: str) -> torch.Tensor:
        file = self._files[hub]
        if file not in self._open:
            self._open[file] = safe_open(self._directory / file, framework="pt")
        tensor = self._open[file].get_tensor(hub)
        assert isinstance(tensor, torch.Tensor)
        return tensor

    def _where(self, hub: str) -> Path:
        return self._directory / self._files[hub]


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    rest = len(listed) - SHOWN_NAMES
    return ", ".join(listed[:SHOWN_NAMES]) + (f" and {rest} more" if rest > 0 else "") if listed else "none"


def _files_of_tensors(directory: Path) -> dict[str, str]:
    """Return tensor name -> file name."""
    index = directory / INDEX
    if index.is_file():
        try:
            files: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (ValueError, KeyError) as error:
            raise UserInputError(f"{index}: has no readable weight_map ({error}).") from error
        if lost := sorted({file for file in files.values() if not (directory / file).is_file()}):
            raise UserInputError(f"{index}: names {len(lost)} files that are not there: {_some(lost)}.")
        return files
    files = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as opened:
            names = list(opened.keys())
        if not any(name.startswith(WEIGHT_PREFIXES) for name in names):
            logger.warning("%s: leaving out %s, which holds no weights of a model", directory, path.name)
            continue
        if twice := [name for name in names if name in files]:
            raise UserInputError(f"{directory}: {twice[0]} is in {files[twice[0]]} and in {path.name}.")
        files |= dict.fromkeys(names, path.name)
    if not files:
        raise UserInputError(f"{directory}: holds neither {INDEX} nor safetensors files with weights of a model.")
    return files
