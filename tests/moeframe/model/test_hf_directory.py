"""Whether a model fits a Hugging Face directory is known without reading a weight."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from safetensors import safe_open

from moeframe.errors import UserInputError
from moeframe.model.config import RopeScaling
from moeframe.model.hf_directory import HfDirectory
from moeframe.model.hf_names import hub_shapes


@pytest.fixture
def directory(fixture_dir, tmp_path):
    """A copy of the fixture that a test may damage."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(fixture_dir / name, tmp_path / name)
    return tmp_path


def said(directory, model):
    return [str(misfit) for misfit in HfDirectory(directory).misfits(model)]


def test_every_shape_is_that_of_the_files(fixture_dir):
    directory = HfDirectory(fixture_dir)
    shapes = hub_shapes(directory.config.model)
    assert directory.misfits(directory.config.model) == []
    assert {name: stored.shape for name, stored in directory.tensors.items()} == shapes
    modules = replace(directory.config.model, num_nextn_predict_layers=1)
    with safe_open(fixture_dir / "mtp" / "mtp.safetensors", framework="np") as opened:
        for name in opened.keys():  # noqa: SIM118  it is no mapping
            assert tuple(opened.get_slice(name).get_shape()) == hub_shapes(modules)[name]


@pytest.mark.parametrize(
    ("key", "value", "may_differ"),
    [
        ("rms_norm_eps", 1e-6, True),
        ("rope_theta", 50000.0, True),
        ("rope_scaling", RopeScaling(factor=40.0, original_max_position_embeddings=64), True),
        ("routed_scaling_factor", 9.0, True),
        ("norm_topk_prob", False, True),
        ("num_experts_per_tok", 1, True),
        ("hidden_size", 32, False),
        ("n_routed_experts", 8, False),
        ("first_k_dense_replace", 0, False),
        ("q_lora_rank", None, False),
    ],
)
def test_a_value_that_is_not_config_jsons_is_the_one_cause_told(fixture_dir, key, value, may_differ):
    model = replace(HfDirectory(fixture_dir).config.model, **{key: value})
    (line,) = said(fixture_dir, model)
    assert line.startswith(f"{key}: given ")
    assert f"{fixture_dir}/config.json says " in line
    assert (f"add {key} to init_from_differs" in line) == may_differ
    if may_differ:
        assert said(fixture_dir, replace(model, init_from_differs=(key,))) == []


def test_a_difference_that_is_none_is_not_to_be_named(fixture_dir):
    model = replace(HfDirectory(fixture_dir).config.model, init_from_differs=("rope_theta",))
    (line,) = said(fixture_dir, model)
    assert line.startswith("init_from_differs: names rope_theta, but ")
    assert "says 10000.0 too. Remove it from the list." in line


def test_what_only_training_reads_may_differ(fixture_dir):
    model = HfDirectory(fixture_dir).config.model
    changed = replace(model, aux_loss_alpha=0.5, bias_update_speed=0.0, initializer_range=1.0, capacity_factor=2.0)
    assert said(fixture_dir, changed) == []


def test_more_mtp_modules_than_there_are_name_the_key(fixture_dir, directory):
    model = replace(HfDirectory(fixture_dir).config.model, num_nextn_predict_layers=1)
    (line,) = said(fixture_dir, model)
    assert line.startswith("num_nextn_predict_layers: given 1; ")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    (line,) = said(directory, model)
    assert line.startswith("num_nextn_predict_layers: given 1; ")
    assert "tensors of MTP modules are missing: model.layers.6." in line


def test_a_file_that_was_cut_off_is_named(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserInputError, match=r"model\.safetensors: is no whole safetensors file"):
        HfDirectory(directory)
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UserInputError, match="Git LFS pointer"):
        HfDirectory(directory)


def test_an_index_that_promises_too_much_is_refused(directory):
    names = list(HfDirectory(directory).tensors)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys([*names, "model.more.weight"], "model.safetensors")}))
    with pytest.raises(UserInputError, match=r"lacks 1 tensors that .* names there: model\.more\.weight"):
        HfDirectory(directory)
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": 3}}))
    with pytest.raises(UserInputError, match="must map names of tensors to names of files"):
        HfDirectory(directory)
