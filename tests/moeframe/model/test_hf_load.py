"""Weights from Hugging Face directories: names, shards, FP8, experts of one rank, MTP, and what is refused."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeframe.errors import UserInputError
from moeframe.model.deepseek_v3 import DeepSeekV3
from moeframe.model.hf_config import read_hf_config
from moeframe.model.hf_load import HfSource, dequantize
from moeframe.model.hf_names import hub_copies, hub_targets
from moeframe.model.plan import build_plan, fill_model
from moeframe.protocols.precision import Precision
from moeframe.train.hf import load_hf

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def weights(request):
    return load_file(request.path.parents[2] / "data" / "dsv3_parity" / "model.safetensors")


@pytest.fixture(scope="module")
def mtp_weights(request):
    return load_file(request.path.parents[2] / "data" / "dsv3_parity" / "mtp" / "mtp.safetensors")


@pytest.fixture
def write(fixture_dir, tmp_path):
    """Write a directory from its tensors; `shards` names a file for some of them."""
    config = json.loads((fixture_dir / "config_legacy.json").read_text())

    def make(tensors, *, shards=None, **changes):
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        if shards is None:
            save_file(tensors, tmp_path / "model.safetensors")
            return tmp_path
        files = {name: shards.get(name, "model-00001-of-00002.safetensors") for name in tensors}
        for file in sorted(set(files.values())):
            save_file({name: tensors[name] for name in tensors if files[name] == file}, tmp_path / file)
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
        return tmp_path

    return make


def meta_model(config, backends, precision="float32", **arguments):
    policy = Precision.of(precision)
    with torch.device("meta"):
        return DeepSeekV3(config, *backends(config, policy), precision=policy, **arguments)


def to_hub(model):
    """Tensors of a model under hub names."""
    own = model.state_dict()
    tensors = {}
    for hub, target in hub_targets(model.config).items():
        tensor = own[target.name] if target.expert is None else own[target.name][target.expert]
        tensors[hub] = (tensor if target.part == "all" else tensor.chunk(2)[target.part == "up"]).clone()
    return tensors


def test_every_hub_name_has_one_place_and_every_place_one_name(tiny, make_model):
    for config in (tiny, replace(tiny, q_lora_rank=None, n_shared_experts=0, topk_method="greedy")):
        targets = hub_targets(config)
        assert len(set(targets.values())) == len(targets)
        changes = {key: getattr(config, key) for key in ("q_lora_rank", "n_shared_experts", "topk_method")}
        assert {target.name for target in targets.values()} == make_model(**changes).state_dict().keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_is_bit_equal_c126_c125(write, weights, dtype):
    rounded = {
        name: tensor if name.endswith(("e_score_correction_bias", "mlp.gate.weight")) else tensor.to(dtype)
        for name, tensor in weights.items()
    }
    back = to_hub(load_hf(write(rounded), dtype=dtype))
    assert back.keys() == rounded.keys()
    for name, tensor in rounded.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor), name


def test_gate_rows_come_before_up_rows_c127(write, weights):
    shape = (24, 64)
    changed = dict(weights)
    changed["model.layers.2.mlp.experts.0.gate_proj.weight"] = torch.eye(*shape)
    changed["model.layers.2.mlp.experts.0.up_proj.weight"] = 2 * torch.eye(*shape)
    changed["model.layers.2.mlp.experts.0.down_proj.weight"] = torch.eye(64, 24)
    model = load_hf(write(changed))
    rows = torch.zeros(1, 64)
    rows[0, 0] = 1.0
    counts = torch.zeros(16, dtype=torch.int64)
    counts[0] = 1
    out = model.blocks["2"].experts.routed(rows, torch.ones(1), counts, None)
    assert out[0, 0].item() == pytest.approx(1.4621, abs=1e-4)  # silu(1) * 2


def test_each_rank_takes_its_own_experts_c124(fixture_dir, backends):
    source = HfSource(fixture_dir)
    whole = load_hf(fixture_dir)
    for rank in range(4):
        model = meta_model(source.config, backends, ep_size=4, ep_rank=rank)
        plan = build_plan(model, source=source)
        plan.materialize("blocks.3.experts.routed", CPU)
        for leaf in ("gate_up_proj", "down_proj"):
            name = f"blocks.3.experts.routed.{leaf}"
            assert torch.equal(model.get_parameter(name), whole.get_parameter(name)[4 * rank : 4 * rank + 4])
        assert model.embedding.weight.is_meta


def test_shards_are_found_through_the_index(write, weights, fixture_dir):
    second = dict.fromkeys(list(weights)[::3], "model-00002-of-00002.safetensors")
    sharded, plain = load_hf(write(weights, shards=second)), load_hf(fixture_dir)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(sharded.state_dict()[name], tensor)


def test_blocks_are_multiplied_by_their_scale_c119():
    ones = torch.ones(256, 128).to(torch.float8_e4m3fn)
    out = dequantize(ones, torch.tensor([[2.0], [0.5]]), (128, 128))
    assert out[:128].eq(2.0).all()
    assert out[128:].eq(0.5).all()
    assert out.dtype == torch.float32


def test_edge_blocks_are_partial_and_power_of_two_scales_work():
    ones = torch.ones(5, 3).to(torch.float8_e4m3fn)
    scales = torch.tensor([[1.0, 2.0], [4.0, 8.0]]).to(torch.float8_e8m0fnu)
    out = dequantize(ones, scales, (4, 2))
    assert out.tolist() == [[1, 1, 2]] * 4 + [[4, 4, 8]]
    with pytest.raises(ValueError, match=r"shape \(2, 2\) for \(1, 1\) blocks"):
        dequantize(ones, scales, (8, 8))


FP8 = "model.layers.3.self_attn.o_proj.weight"
BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}}


@pytest.fixture
def quantised(weights):
    scales = torch.tensor([[0.5, 1.0], [2.0, 4.0]])
    return dict(weights) | {FP8: weights[FP8].to(torch.float8_e4m3fn), f"{FP8}_scale_inv": scales}


def test_an_fp8_weight_finds_its_scale_in_another_file_c121(write, quantised):
    directory = write(quantised, shards={f"{FP8}_scale_inv": "model-00002-of-00002.safetensors"}, **BLOCKS)
    found = load_hf(directory).blocks["3"].attend.attention.o_proj.weight
    stored = quantised[FP8].float()
    assert torch.equal(found[:32, :32], stored[:32, :32] * 0.5)
    assert torch.equal(found[32:, 32:], stored[32:, 32:] * 4.0)


def test_an_fp8_weight_without_its_scale_names_both_c121(write, quantised):
    del quantised[f"{FP8}_scale_inv"]
    with pytest.raises(UserInputError, match=rf"{FP8} is FP8, and its scale {FP8}_scale_inv is missing"):
        load_hf(write(quantised, **BLOCKS))


def test_fp8_needs_its_block_shape(write, quantised):
    with pytest.raises(UserInputError, match="no quantization_config"):
        load_hf(write(quantised))
    wrong = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}
    with pytest.raises(UserInputError, match=r"_scale_inv has scales of shape \(2, 2\) for \(1, 1\) blocks"):
        load_hf(write(quantised, **wrong))


def test_an_mtp_module_is_skipped_on_purpose_or_loaded_c123(write, weights, mtp_weights, caplog):
    both = weights | mtp_weights
    with caplog.at_level(logging.WARNING):
        source = HfSource(write(both))
    assert sorted(source.skipped) == sorted(mtp_weights)
    assert f"skipping {len(mtp_weights)} tensors of MTP modules (model.layers.6)" in caplog.text
    assert not load_hf(write(both)).mtp
    model = load_hf(write(both, num_nextn_predict_layers=1))
    assert torch.equal(model.mtp["0"].eh_proj.weight, mtp_weights["model.layers.6.eh_proj.weight"])
    assert torch.equal(model.mtp["0"].norm.weight, mtp_weights["model.layers.6.shared_head.norm.weight"])


@pytest.mark.parametrize("copy", ["embed_tokens", "shared_head.head"])
def test_copies_of_embedding_and_head_must_be_copies(write, weights, mtp_weights, copy):
    name = f"model.layers.6.{copy}.weight"
    both = weights | mtp_weights | {name: mtp_weights[name] + 1}
    with pytest.raises(UserInputError, match=rf"{name} differs from"):
        load_hf(write(both, num_nextn_predict_layers=1))
    without = {key: tensor for key, tensor in both.items() if key != name}
    config = load_hf(write(without, num_nextn_predict_layers=1)).config
    assert name in hub_copies(config)


def test_unknown_tensors_are_refused_by_name_c123(write, weights):
    with pytest.raises(UserInputError, match=r"1 tensors are unknown: model\.layers\.2\.mlp\.extra\.weight"):
        HfSource(write(weights | {"model.layers.2.mlp.extra.weight": torch.ones(1)}))
    with pytest.raises(UserInputError, match=r"unknown: model\.layers\.5\.input_layernorm"):
        HfSource(write(weights, num_hidden_layers=5))


def test_old_rotary_tables_are_ignored(write, weights):
    HfSource(write(weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))


def test_missing_tensors_are_refused_by_name(write, weights):
    part = {name: tensor for name, tensor in weights.items() if ".experts.3." not in name}
    with pytest.raises(UserInputError, match=r"12 tensors are missing: model\.layers\.2\.mlp\.experts\.3\.gate_proj"):
        HfSource(write(part))


def test_a_directory_of_something_else_is_refused_c126(write, weights):
    with pytest.raises(UserInputError, match="none of its 1 tensors belongs to this model"):
        HfSource(write({"model.decoder.weight": torch.ones(1)}))


def test_another_shape_is_refused_with_both(write, weights):
    directory = write(weights | {"lm_head.weight": torch.ones(8, 64)})
    with pytest.raises(
        UserInputError, match=r"lm_head\.weight has shape \(8, 64\), but by config\.json it has \(256, 64\)"
    ):
        load_hf(directory)


def test_missing_files_are_refused(write, weights, tmp_path):
    directory = write(weights, shards={"lm_head.weight": "model-00002-of-00002.safetensors"})
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserInputError, match=r"names 1 files that are not there: model-00002-of-00002"):
        HfSource(directory)
    (directory / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UserInputError, match="no readable weight_map"):
        HfSource(directory)
    (directory / "model.safetensors.index.json").unlink()
    (directory / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(UserInputError, match="neither"):
        HfSource(directory)


def test_a_tensor_in_two_files_is_refused(write, weights, tmp_path):
    directory = write(weights)
    save_file({"lm_head.weight": weights["lm_head.weight"]}, tmp_path / "other.safetensors")
    with pytest.raises(UserInputError, match=r"lm_head\.weight is in model\.safetensors and in other\.safetensors"):
        HfSource(directory)


def test_a_missing_balance_coefficient_is_announced_where_config_json_decides_c32(write, weights, caplog):
    directory = write(weights)
    config = json.loads((directory / "config.json").read_text())
    del config["aux_loss_alpha"]
    (directory / "config.json").write_text(json.dumps(config))
    with caplog.at_level(logging.WARNING):
        HfSource(directory, replace(read_hf_config(directory).model, aux_loss_alpha=0.5))
        assert not caplog.text
        HfSource(directory)
    assert "no aux_loss_alpha in config.json; training uses 0.0001" in caplog.text


def test_a_job_that_computes_something_else_is_refused_unless_it_says_so(fixture_dir, backends):
    config = replace(read_hf_config(fixture_dir).model, rope_theta=50000.0)
    with pytest.raises(UserInputError, match=r"rope_theta: given 50000\.0; .*config\.json says 10000\.0"):
        HfSource(fixture_dir, config)
    config = replace(config, init_from_differs=("rope_theta",))
    model = meta_model(config, backends, precision="bfloat16")
    fill_model(model, CPU, source=HfSource(fixture_dir, config))
    assert torch.equal(model.embedding.weight, load_hf(fixture_dir).embedding.weight)
