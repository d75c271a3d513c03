"""What a Hugging Face directory holds, and whether a model fits it: names, shapes and files, no values.

Importable without torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moeframe.errors import UserInputError
from moeframe.model.config import DeepSeekV3Config
from moeframe.model.hf_config import HfDirectoryConfig, differences, read_hf_config
from moeframe.model.hf_names import hub_copies, hub_shapes, hub_targets

__all__ = ["FP8", "HfDirectory", "Misfit", "Stored"]

INDEX: Final = "model.safetensors.index.json"
SCALE_SUFFIX: Final = "_scale_inv"
FP8: Final = "F8_E4M3"
IGNORED_NAMES: Final = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Tables that old files carry; they are computed here."""
WEIGHT_PREFIXES: Final = ("model.", "lm_head.")
"""Without an index, a file with no name like these is no part of the model."""
SHOWN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor as it lies in a file; `dtype` in the spelling of safetensors."""

    file: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """Why a model cannot be filled. `key` is the field of `DeepSeekV3Config` at fault, "" when the files are."""

    key: str
    message: str
    fix: str

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.key + ': ' if self.key else ''}{self.message} {self.fix}".rstrip()


class HfDirectory:
    """config.json and the tensors of a directory in the hub's naming.

    Args:
        path: holds config.json and either `model.safetensors.index.json` with the files it names, or any number of
            safetensors files.

    Attributes:
        path: as given.
        config: what config.json says.
        tensors: every tensor of the weights, by name.
        left_out: safetensors files that hold no weights of a model.

    Raises:
        UserInputError: config.json, a file or an entry of the index is missing or damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config: HfDirectoryConfig = read_hf_config(self.path)
        self.tensors, self.left_out = _tensors(self.path)

    def misfits(self, model: DeepSeekV3Config) -> list[Misfit]:
        """Return why these weights are not those of `model`; the first kind of cause that there is.

        Differences from config.json come first: what is missing or has another shape then follows from them.
        """
        return list(self._differences(model)) or [*self._names(model), *self._shapes(model)]

    def skipped(self, model: DeepSeekV3Config) -> tuple[str, ...]:
        """Return the tensors that are left out on purpose: MTP modules that the model does not have."""
        spare = re.compile(r"(model\.layers\.\d+\.)eh_proj\.weight")
        targets = hub_targets(model)
        modules = tuple(match[1] for name in self.tensors if (match := spare.fullmatch(name)) and name not in targets)
        return tuple(name for name in self._not_of(model) if name.startswith(modules)) if modules else ()

    def _differences(self, model: DeepSeekV3Config) -> Iterator[Misfit]:
        file, theirs = self.path / "config.json", self.config.model
        found = differences(model, theirs)
        for key, (wanted, there) in found.items():
            if key in model.init_from_differs:
                continue
            fix = f"Use {_yaml(there)}, or another directory in init_from."
            if key in DeepSeekV3Config.may_differ():
                fix = f"Use {_yaml(there)}, or add {key} to init_from_differs if the difference is meant."
            yield Misfit(key=key, message=f"given {_yaml(wanted)}; {file} says {_yaml(there)}.", fix=fix)
        for key in model.init_from_differs:
            if key not in found:
                there = _yaml(getattr(theirs, key))
                message = f"names {key}, but {file} says {there} too."
                yield Misfit(key="init_from_differs", message=message, fix="Remove it from the list.")
        depth, there = model.num_nextn_predict_layers, theirs.num_nextn_predict_layers
        if depth > there:
            yield Misfit(
                key="num_nextn_predict_layers",
                message=f"given {depth}; {file} says {there}, so there are no weights for more MTP modules.",
                fix=f"Use {there} or less.",
            )

    def _names(self, model: DeepSeekV3Config) -> Iterator[Misfit]:
        targets, found = hub_targets(model), self.tensors.keys()
        if not found & targets.keys():
            message = (
                f"{self.path}: none of its {len(found)} tensors belongs to this model. It has {_some(found)}; the "
                f"model has {_some(targets)}."
            )
            yield Misfit(key="", message=message, fix="Name a directory of the DeepSeek-V3 family.")
            return
        missing = [name for name in targets if name not in found]
        mtp = tuple(f"model.layers.{model.num_hidden_layers + i}." for i in range(model.num_nextn_predict_layers))
        if missing and mtp and all(name.startswith(mtp) for name in missing):
            yield Misfit(
                key="num_nextn_predict_layers",
                message=f"given {len(mtp)}; {self.path}: {len(missing)} tensors of MTP modules are missing: "
                f"{_some(missing)}.",
                fix="Use 0 to train without MTP modules, or name files that hold them.",
            )
        elif missing:
            message = f"{self.path}: {len(missing)} tensors are missing: {_some(missing)}."
            yield Misfit(key="", message=message, fix="Fetch the directory again: its files are not complete.")
        if unknown := sorted(set(self._not_of(model)) - set(self.skipped(model))):
            message = f"{self.path}: {len(unknown)} tensors are unknown: {_some(unknown)}."
            fix = "The files hold more than config.json describes; name a directory of the DeepSeek-V3 family."
            yield Misfit(key="", message=message, fix=fix)

    def _shapes(self, model: DeepSeekV3Config) -> Iterator[Misfit]:
        shapes = hub_shapes(model)
        present = {name: stored for name, stored in self.tensors.items() if name in shapes}
        wrong = [name for name, stored in present.items() if stored.shape != shapes[name]]
        if wrong:
            name = wrong[0]
            others = f" So have {len(wrong) - 1} more tensors another shape." if len(wrong) > 1 else ""
            message = (
                f"{self.path / present[name].file}: {name} has shape {present[name].shape}, but by config.json it has "
                f"{shapes[name]}.{others}"
            )
            yield Misfit(key="", message=message, fix="Fetch the directory again: its files are of another model.")
        quantised = [name for name, stored in present.items() if stored.dtype == FP8]
        lost = [name for name in quantised if f"{name}{SCALE_SUFFIX}" not in self.tensors]
        if lost:
            message = (
                f"{self.path / present[lost[0]].file}: {lost[0]} is FP8, and its scale {lost[0]}{SCALE_SUFFIX} is "
                f"missing ({len(lost)} such)."
            )
            yield Misfit(key="", message=message, fix="Fetch the directory again: its files are not complete.")
        if quantised and self.config.fp8_block is None:
            message = f"{self.path}: {quantised[0]} is FP8, but config.json has no quantization_config."
            yield Misfit(key="", message=message, fix="Take config.json from where the files are from.")

    def _not_of(self, model: DeepSeekV3Config) -> list[str]:
        """Return the tensors that are no part of the model, and no copy or scale of one."""
        known = hub_targets(model).keys() | hub_copies(model).keys()
        return [
            name
            for name in self.tensors
            if name.removesuffix(SCALE_SUFFIX) not in known and IGNORED_NAMES.fullmatch(name) is None
        ]


def _yaml(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    rest = len(listed) - SHOWN
    return ", ".join(listed[:SHOWN]) + (f" and {rest} more" if rest > 0 else "") if listed else "none"


def _tensors(directory: Path) -> tuple[dict[str, Stored], tuple[str, ...]]:
    """Return what the weights are, by name, from the headers of the files alone, and which files are others."""
    index = directory / INDEX
    if index.is_file():
        return _tensors_of_index(directory, index), ()
    found: dict[str, Stored] = {}
    left_out = []
    for path in sorted(directory.glob("*.safetensors")):
        header = _header(path)
        if not any(name.startswith(WEIGHT_PREFIXES) for name in header):
            left_out.append(path.name)
            continue
        if twice := [name for name in header if name in found]:
            raise UserInputError(f"{directory}: {twice[0]} is in {found[twice[0]].file} and in {path.name}.")
        found |= header
    if not found:
        raise UserInputError(f"{directory}: holds neither {INDEX} nor safetensors files with weights of a model.")
    return found, tuple(left_out)


def _tensors_of_index(directory: Path, index: Path) -> dict[str, Stored]:
    try:
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserInputError(f"{index}: has no readable weight_map ({type(error).__name__}: {error}).") from error
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise UserInputError(f"{index}: has no readable weight_map (it must map names of tensors to names of files).")
    if lost := sorted({file for file in files.values() if not (directory / file).is_file()}):
        raise UserInputError(f"{index}: names {len(lost)} files that are not there: {_some(lost)}.")
    headers = {file: _header(directory / file) for file in sorted(set(files.values()))}
    if absent := [name for name, file in files.items() if name not in headers[file]]:
        where = directory / files[absent[0]]
        raise UserInputError(f"{where}: lacks {len(absent)} tensors that {INDEX} names there: {_some(absent)}.")
    return {name: headers[file][name] for name, file in files.items()}


def _header(path: Path) -> dict[str, Stored]:
    """Return the tensors of one file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as opened:
            found = {}
            for name in opened.keys():  # noqa: SIM118  it is no mapping
                view = opened.get_slice(name)
                found[name] = Stored(file=path.name, shape=tuple(view.get_shape()), dtype=str(view.get_dtype()))
            return found
    except (SafetensorError, OSError) as error:
        raise UserInputError(
            f"{path}: is no whole safetensors file ({error}). Fetch it again; a Git LFS pointer or a download that was "
            f"cut off looks so."
        ) from error
