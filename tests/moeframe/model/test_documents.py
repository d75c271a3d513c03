"""A packed sequence whose documents are kept apart computes what each document computes alone."""

from __future__ import annotations

import numpy
import pytest
import torch

from moeframe.model.attention import attention_mask
from moeframe.model.deepseek_v3 import DeepSeekV3, ModelOutput, ModelStage
from moeframe.model.mtp import valid_ahead
from moeframe.protocols.data import IGNORED, MicroBatch, TokenSequence
from moeframe.train.data import make_micro_batch

CPU = torch.device("cpu")
LENGTHS = (7, 1, 12, 3, 11)
"""Of the documents in one sequence; some are shorter than the MTP depth reaches."""
DEPTHS = 2


def documents() -> list[torch.Tensor]:
    """Return the token ids of each document; the packed sequence and its last target are all of them."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(64, (length,), generator=generator) for length in LENGTHS]


def packed(*, masked: bool) -> MicroBatch:
    tokens = torch.cat(documents()).numpy()
    ids = numpy.repeat(numpy.arange(len(LENGTHS)), LENGTHS).astype(numpy.int64)
    return make_micro_batch(
        [TokenSequence(tokens=tokens, document_ids=ids if masked else None)], mtp_depth=DEPTHS, device=CPU
    )


def alone(document: torch.Tensor) -> MicroBatch:
    return make_micro_batch([TokenSequence(tokens=document.numpy())], mtp_depth=DEPTHS, device=CPU)


def losses(model: DeepSeekV3, batch: MicroBatch) -> list[torch.Tensor]:
    """Return the cross-entropy at each position, 0 where there is no target: (B, S), main and each MTP depth."""
    with torch.no_grad():
        output = model(batch.input_ids, document_ids=batch.document_ids)
    assert isinstance(output, ModelOutput)
    return [
        torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none"
        ).view_as(targets)
        for logits, targets in zip(
            (output.logits, *(output.mtp_logits or ())), (batch.targets, *batch.mtp_targets), strict=True
        )
    ]


def total_gradients(model: DeepSeekV3, batches: list[MicroBatch]) -> dict[str, torch.Tensor]:
    """Return the gradients of the summed losses of all batches."""
    stage = ModelStage(model)
    model.zero_grad()
    for batch in batches:
        model.step_state.begin(loss_tokens=1, mtp_tokens=(1,) * DEPTHS, valid_tokens=1)
        stage.loss(stage.forward(None, batch), batch).backward()
    return {
        name: torch.zeros_like(value) if value.grad is None else value.grad.clone()
        for name, value in model.named_parameters()
    }


@pytest.fixture
def model(make_model) -> DeepSeekV3:
    # The balance loss is a sum over sequences, so it is no sum over documents: left out.
    return make_model(num_nextn_predict_layers=DEPTHS, aux_loss_alpha=0.0)


def test_documents_of_a_packed_sequence_have_the_losses_that_each_has_alone(model) -> None:
    together = losses(model, packed(masked=True))
    start = 0
    for document in documents():
        inputs = len(document) - 1  # its last token is only a target when it stands alone
        for packed_losses, own_losses in zip(together, losses(model, alone(document)), strict=True) if inputs else ():
            ours = packed_losses[:, start : start + inputs]
            assert (ours - own_losses).abs().max() <= 1e-9 * max(1.0, float(own_losses.abs().max()))
        start += len(document)


def test_positions_before_a_boundary_have_no_target_at_any_depth(model) -> None:
    batch = packed(masked=True)
    ends = torch.tensor(LENGTHS).cumsum(0) - 1
    for ahead, targets in enumerate((batch.targets, *batch.mtp_targets), start=1):
        beyond = {
            position
            for end, length in zip(ends.tolist(), LENGTHS, strict=True)
            for position in range(end - min(ahead, length) + 1, end + 1)
        }
        without = set((targets[0] == IGNORED).nonzero().flatten().tolist())
        assert without == {position for position in beyond if position < targets.shape[1]}


def test_documents_kept_apart_give_the_gradients_that_they_give_alone(model) -> None:
    together = total_gradients(model, [packed(masked=True)])
    apart = total_gradients(model, [alone(document) for document in documents() if len(document) > 1])
    for name, gradient in apart.items():
        assert (together[name] - gradient).abs().max() <= 1e-9 * max(1.0, float(gradient.abs().max())), name


def test_another_document_changes_nothing_when_kept_apart_and_something_when_not(model) -> None:
    for masked in (True, False):
        batch = packed(masked=masked)
        changed = batch.input_ids.clone()
        changed[0, : LENGTHS[0]] = (changed[0, : LENGTHS[0]] + 1) % 64
        with torch.no_grad():
            before, after = (
                model(tokens, document_ids=batch.document_ids).logits[0, LENGTHS[0] :]
                for tokens in (batch.input_ids, changed)
            )
        largest = (before - after).abs().max()
        assert largest <= 1e-9 if masked else largest > 1e-3


def test_one_document_over_the_whole_sequence_changes_nothing(model) -> None:
    batch = packed(masked=False)
    assert batch.document_ids is None
    with torch.no_grad():
        plain = model(batch.input_ids)
        whole = model(batch.input_ids, document_ids=torch.zeros_like(batch.input_ids))
    for ours, reference in zip((whole.logits, *whole.mtp_logits), (plain.logits, *plain.mtp_logits), strict=True):
        assert (ours - reference).abs().max() <= 1e-9


def test_positions_that_look_into_the_next_document_are_routed_to_no_expert(model) -> None:
    model.take_counters()
    batch = packed(masked=True)
    model(batch.input_ids, document_ids=batch.document_ids)
    top_k = model.config.num_experts_per_tok
    *decoder, first, second = model.take_counters().tokens_per_expert.sum(-1).tolist()
    inputs = [*LENGTHS[:-1], LENGTHS[-1] - 1]
    assert decoder == [sum(inputs) * top_k] * len(decoder)
    assert first == sum(max(0, length - 1) for length in inputs) * top_k
    assert second == sum(max(0, length - 2) for length in inputs) * top_k


def test_a_query_looks_at_earlier_tokens_of_its_own_document() -> None:
    ids = torch.tensor([[0, 0, 1, 1]])
    mask = attention_mask(None, ids)
    assert mask is not None
    assert mask.int().tolist() == [[[[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]]]
    valid = torch.tensor([[True, True, True, False]])
    both = attention_mask(valid, ids)
    assert both is not None
    assert torch.equal(both, mask)  # a padded query still sees itself
    assert attention_mask(None, None) is None


def test_a_token_ahead_counts_in_its_own_document_only() -> None:
    ids = torch.tensor([[0, 0, 0, 1, 1]])
    like = torch.zeros(1, 5, 1)
    assert valid_ahead(None, 1, like, ids).int().tolist() == [[1, 1, 0, 1, 0]]
    assert valid_ahead(None, 2, like, ids).int().tolist() == [[1, 0, 0, 0, 0]]
    padded = torch.tensor([[True, False, True, True, True]])
    assert valid_ahead(padded, 1, like, ids).int().tolist() == [[0, 0, 0, 1, 0]]
