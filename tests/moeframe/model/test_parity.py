"""The model equals the published one: Hugging Face transformers' numbers on random weights (tests/data/dsv3_parity)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from moeframe.model.deepseek_v3 import DeepSeekV3, ModelOutput
from moeframe.model.hf_names import hub_targets
from moeframe.train.hf import load_hf

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
LOGITS = {"fp32": 1e-4, "fp64": 1e-7}
LOSS = 1e-5
GRAD_NORM = 1e-4
IGNORED = -100
MTP_LAMBDA = 0.3


@pytest.fixture(scope="module")
def reference() -> dict[str, torch.Tensor]:
    return load_file(Path(__file__).parents[2] / "data" / "dsv3_parity" / "reference.safetensors")


@pytest.fixture
def with_mtp(fixture_dir: Path, tmp_path: Path) -> Path:
    """The fixture as one directory with its MTP module."""
    config = json.loads((fixture_dir / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    shutil.copy(fixture_dir / "model.safetensors", tmp_path)
    shutil.copy(fixture_dir / "mtp" / "mtp.safetensors", tmp_path)
    return tmp_path


def main_loss(logits: torch.Tensor, labels: torch.Tensor, ahead: int = 1) -> torch.Tensor:
    """Mean cross-entropy of position i against label i + ahead."""
    targets = labels[:, ahead:].flatten()
    return F.cross_entropy(logits[:, : labels.shape[1] - ahead].flatten(0, 1), targets, ignore_index=IGNORED)


def hub_gradients(model: DeepSeekV3) -> dict[str, torch.Tensor]:
    """Gradients by hub name."""
    own = {name: parameter.grad for name, parameter in model.named_parameters()}
    gradients = {}
    for hub, target in hub_targets(model.config).items():
        grad = own.get(target.name)
        if grad is None:
            assert hub.endswith("e_score_correction_bias")
            continue
        if target.expert is not None:
            grad = grad[target.expert]
        gradients[hub] = grad if target.part == "all" else grad.chunk(2)[target.part == "up"]
    return gradients


@pytest.mark.parametrize("kind", DTYPES)
def test_logits_and_every_layer_equal_the_published_model(fixture_dir, reference, kind):
    model = load_hf(fixture_dir, dtype=DTYPES[kind])
    seen: dict[str, torch.Tensor] = {}
    hooks = [
        block.register_forward_hook(
            lambda module, inputs, output: seen.update({f"{kind}.hidden.layer{module.layer}": output})
        )
        for block in model.blocks.values()
    ]
    output = model(reference["input_ids"])
    for hook in hooks:
        hook.remove()
    assert output.mtp_logits is None
    assert len(seen) == 6
    for name, hidden in seen.items():
        torch.testing.assert_close(hidden, reference[name], rtol=0, atol=LOGITS[kind])
    torch.testing.assert_close(output.logits, reference[f"{kind}.logits"], rtol=0, atol=LOGITS[kind])


def test_both_config_spellings_give_the_same_logits(fixture_dir, reference, tmp_path):
    shutil.copy(fixture_dir / "config_legacy.json", tmp_path / "config.json")
    shutil.copy(fixture_dir / "model.safetensors", tmp_path)
    new, old = load_hf(fixture_dir), load_hf(tmp_path)
    assert new.config == old.config
    assert torch.equal(new(reference["input_ids"]).logits, old(reference["input_ids"]).logits)


@pytest.mark.parametrize("kind", DTYPES)
def test_every_token_goes_to_the_published_experts_with_the_published_weights(fixture_dir, reference, kind):
    model = load_hf(fixture_dir, dtype=DTYPES[kind])
    routed: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for layer in range(2, 6):
        router = model.blocks[str(layer)].attend.router
        router.register_forward_hook(lambda module, inputs, output, layer=layer: routed.update({str(layer): output}))
    model(reference["input_ids"])
    counts = model.take_counters().tokens_per_expert
    for layer in range(2, 6):
        ids, gates = routed[str(layer)]
        ids, order = ids.sort(-1)
        assert torch.equal(ids, reference[f"fp32.topk_index.layer{layer}"])
        assert gates.dtype == DTYPES[kind]
        published = reference[f"{kind}.topk_weight.layer{layer}"]
        torch.testing.assert_close(gates.gather(-1, order), published, rtol=0, atol=1e-5 if kind == "fp32" else 1e-9)
        assert torch.equal(counts[layer - 2], reference[f"fp32.tokens_per_expert.layer{layer}"])


@pytest.mark.parametrize("kind", DTYPES)
def test_loss_and_every_gradient_norm_equal_the_published_ones(fixture_dir, reference, kind):
    model = load_hf(fixture_dir, dtype=DTYPES[kind])
    loss = main_loss(model(reference["input_ids"]).logits, reference["labels"])
    loss.backward()
    published = json.loads((fixture_dir / "grad_norms.json").read_text())
    assert loss.item() == pytest.approx(published[f"loss_{kind}"], abs=LOSS)
    gradients = hub_gradients(model)
    norms = published[f"grad_norm_{kind}"]
    assert gradients.keys() == norms.keys()
    for name, norm in norms.items():
        assert gradients[name].norm().item() == pytest.approx(norm, rel=GRAD_NORM), name
    total = torch.nn.utils.get_total_norm(gradients.values())
    assert total.item() == pytest.approx(published[f"total_grad_norm_{kind}"], rel=GRAD_NORM)
    if kind == "fp64":
        for name in reference:
            if name.startswith("fp64.grad."):
                torch.testing.assert_close(
                    gradients[name.removeprefix("fp64.grad.")], reference[name], rtol=0, atol=1e-7
                )


@pytest.mark.parametrize("kind", DTYPES)
def test_six_adamw_steps_follow_the_published_trace(fixture_dir, reference, kind):
    model = load_hf(fixture_dir, dtype=DTYPES[kind])
    trace = json.loads((fixture_dir / "train_trace.json").read_text())
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=trace["lr"],
        betas=tuple(trace["betas"]),
        eps=trace["eps"],
        weight_decay=trace["weight_decay"],
    )
    for published in trace[kind]:
        loss = main_loss(model(reference["input_ids"]).logits, reference["labels"])
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), trace["clip_grad_norm"])
        optimizer.step()
        assert loss.item() == pytest.approx(published["loss"], abs=1e-4)
        assert norm.item() == pytest.approx(published["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("kind", DTYPES)
def test_mtp_logits_losses_and_gradients_equal_the_published_ones(fixture_dir, with_mtp, reference, kind):
    model = load_hf(with_mtp, dtype=DTYPES[kind])
    output = model(reference["input_ids"])
    assert isinstance(output, ModelOutput)
    (mtp_logits,) = output.mtp_logits
    published = load_file(fixture_dir / "mtp" / "reference_mtp.safetensors")[f"{kind}.mtp_logits"]
    # The published run left the last position out, which has no next token; ours counts it nowhere.
    torch.testing.assert_close(mtp_logits[:, :31], published, rtol=0, atol=LOGITS[kind])
    assert model.take_counters().tokens_per_expert[-1].sum() == 4 * 31 * 4

    numbers = json.loads((fixture_dir / "mtp" / "mtp.json").read_text())
    loss = main_loss(output.logits, reference["labels"])
    mtp_loss = main_loss(mtp_logits, reference["labels"], ahead=2)
    assert loss.item() == pytest.approx(numbers[kind]["main_loss"], abs=LOSS)
    assert mtp_loss.item() == pytest.approx(numbers[kind]["mtp_loss"], abs=LOSS)
    (loss + MTP_LAMBDA * mtp_loss).backward()
    gradients = hub_gradients(model)
    norms = numbers[f"grad_norm_{kind}"]
    assert gradients.keys() == norms.keys()
    for name, norm in norms.items():
        assert gradients[name].norm().item() == pytest.approx(norm, rel=GRAD_NORM), name


def test_a_bfloat16_model_keeps_router_and_bias_in_float32_and_the_loss_near(fixture_dir, reference):
    model = load_hf(fixture_dir, dtype=torch.bfloat16)
    dtypes = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert {name for name, dtype in dtypes.items() if dtype != torch.bfloat16} == {
        f"blocks.{layer}.attend.router.weight" for layer in range(2, 6)
    }
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}
    logits = model(reference["input_ids"]).logits
    assert logits.dtype == torch.bfloat16
    loss = main_loss(logits.float(), reference["labels"])
    assert loss.item() == pytest.approx(reference["fp64.loss"].item(), abs=3e-2)
