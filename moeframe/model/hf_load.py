"""Weights from a Hugging Face directory, tensor by tensor: only what the asking rank holds is read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from moeframe.errors import UserInputError
from moeframe.model.config import DeepSeekV3Config
from moeframe.model.hf_directory import SCALE_SUFFIX, HfDirectory
from moeframe.model.hf_names import Target, hub_copies, hub_targets

__all__ = ["HfSource", "dequantize"]

logger = logging.getLogger(__name__)


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
        directory: as in `HfDirectory`.
        config: the model to fill; None: the one that config.json describes.

    Attributes:
        config: the model it fills.
        directory_config: what config.json says.
        skipped: tensors that are there and left out on purpose: MTP modules that the model does not have.

    Raises:
        UserInputError: files, or tensors of this model, are missing, there are tensors that it does not know, or the
            model is another one than config.json describes.
    """

    def __init__(self, directory: str | Path, config: DeepSeekV3Config | None = None) -> None:
        held = HfDirectory(directory)
        self._directory, self._tensors = held.path, held.tensors
        self.directory_config = held.config
        self.config = held.config.model if config is None else config
        if held.left_out:
            logger.warning("%s: leaving out %s, no weights of a model", directory, ", ".join(held.left_out))
        if config is None:
            self._announce_alpha()
        if misfits := held.misfits(self.config):
            raise UserInputError("; ".join(str(misfit) for misfit in misfits))
        self._open: dict[str, Any] = {}
        self._copies = {name: of for name, of in hub_copies(self.config).items() if name in self._tensors}
        self.skipped = held.skipped(self.config)
        if self.skipped:
            logger.warning(
                "%s: skipping %d tensors of MTP modules (%s), because num_nextn_predict_layers is %d",
                directory,
                len(self.skipped),
                ", ".join(sorted({".".join(name.split(".")[:3]) for name in self.skipped})),
                self.config.num_nextn_predict_layers,
            )
        self._hub_names: dict[str, list[tuple[str, Target]]] = {}
        for hub, target in hub_targets(self.config).items():
            self._hub_names.setdefault(target.name, []).append((hub, target))

    def _announce_alpha(self) -> None:
        if "aux_loss_alpha" not in self.directory_config.given:
            logger.warning(
                "%s: no aux_loss_alpha in config.json; training uses %g for the sequence-wise balance loss (the "
                "report's value)",
                self._directory,
                self.config.aux_loss_alpha,
            )

    @torch.no_grad()
    def fill_(self, name: str, tensor: torch.Tensor, *, first_expert: int | None) -> None:
        """Fill the tensor of this name in place; see `moeframe.model.plan.Weights`.

        Raises:
            UserInputError: the scale of an FP8 weight has another shape, or the copies of embedding and head in an
                MTP module differ from the model's.
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
            into.copy_(self._read(hub))

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
        assert block is not None  # HfDirectory has refused FP8 without a scale or its block
        try:
            return dequantize(value, self._stored(scale), block)
        except ValueError as error:
            raise UserInputError(f"{self._where(scale)}: {scale} has {error} of {block}.") from error

    def _stored(self, hub: str) -> torch.Tensor:
        file = self._tensors[hub].file
        if file not in self._open:
            self._open[file] = safe_open(self._directory / file, framework="pt")
        tensor = self._open[file].get_tensor(hub)
        assert isinstance(tensor, torch.Tensor)
        return tensor

    def _where(self, hub: str) -> Path:
        return self._directory / self._tensors[hub].file
