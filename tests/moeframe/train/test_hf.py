"""The public `load_hf`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import moeframe
from moeframe.errors import UserInputError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.protocols.precision import Precision
from moeframe.train.hf import REFERENCE


@pytest.fixture
def directory():
    return Path(__file__).parents[2] / "data" / "dsv3_parity"


def test_the_dtype_of_the_directory_is_the_default(directory):
    model = moeframe.load_hf(str(directory))
    assert model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    output = model(torch.zeros(1, 2, dtype=torch.int64))
    assert output.logits.shape == (1, 2, 256)
    assert output.mtp_logits is None


def test_other_dtypes_are_refused(directory):
    with pytest.raises(UserInputError, match=r"torch\.float16 is not supported. Use float32, float64, bfloat16"):
        moeframe.load_hf(directory, dtype=torch.float16)


def test_a_directory_that_names_another_dtype_needs_one(directory, tmp_path):
    config = (directory / "config.json").read_text().replace('"dtype": "float32"', '"dtype": "float16"')
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "model.safetensors").symlink_to(directory / "model.safetensors")
    with pytest.raises(UserInputError, match=r"names the dtype 'float16'\. Pass dtype"):
        moeframe.load_hf(tmp_path)
    assert moeframe.load_hf(tmp_path, dtype=torch.float64).embedding.weight.dtype == torch.float64


def test_the_reference_backends_communicate_with_nobody():
    offer = Catalog(build_plugin_manager()).resolve("dispatcher", REFERENCE["dispatcher"])
    traits = offer.traits(offer.options(), Precision.of("float64"))
    assert traits.max_group == 1
    assert traits.deterministic
    assert not traits.fused
