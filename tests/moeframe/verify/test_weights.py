from __future__ import annotations

import numpy
import pytest

from moeframe.verify.records import Sequences
from moeframe.verify.weights import Basis, Division, loss_under, matching_mean, uniform_weight, weights_in

# Token counts and sums of case C33: (2, 1) and (90, 9).
TOKENS = numpy.asarray([1, 9])
SEQUENCES = Sequences(sums={"ce": numpy.asarray([2.0, 90.0])}, tokens={"ce": TOKENS})
CUT = Division(ranks=[[0], [1]], micro_batches=[[0], [1]])


def test_c33_a_mean_of_means_is_6_where_the_mean_is_9_2() -> None:
    assert SEQUENCES.sums["ce"].sum() / TOKENS.sum() == 9.2
    assert loss_under("a mean over ranks of their own means", "ce", SEQUENCES, CUT) == pytest.approx(6.0)


def test_c33_the_weights_of_a_mean_of_means_are_recognised() -> None:
    # The right weight of a token is 1/10; in a mean of means it is 1/2 and 1/18.
    weights = numpy.asarray([5.0, 10 / 18])
    assert matching_mean(weights, TOKENS, CUT) == "a mean over ranks of their own means"
    assert matching_mean(numpy.ones(2), TOKENS, CUT) == "right"
    assert matching_mean(numpy.asarray([5.0, 1.0]), TOKENS, CUT) is None


def test_a_sequence_without_tokens_has_no_say() -> None:
    assert matching_mean(numpy.asarray([numpy.nan, 1.0]), numpy.asarray([0, 9]), CUT) == "right"


def test_a_gradient_is_taken_apart_into_the_parts_it_was_made_of() -> None:
    generator = numpy.random.default_rng(0)
    parts = {"ce": generator.normal(size=(2, 12)), "mtp 1": generator.normal(size=(2, 12))}
    tokens = {"ce": TOKENS, "mtp 1": numpy.asarray([1, 7])}
    sequences = Sequences(sums={}, tokens=tokens)
    gradient = parts["ce"].sum(0) / 10 + 3 * parts["mtp 1"].sum(0) / 8
    weights = weights_in(gradient, Basis(gradients=parts), sequences)
    assert weights is not None
    assert weights["ce"] == pytest.approx([1, 1])
    assert uniform_weight(weights["mtp 1"]) == pytest.approx(3)


def test_a_gradient_that_is_no_sum_of_the_parts_is_not_forced_into_one() -> None:
    basis = Basis(gradients={"ce": numpy.eye(2, 12)})
    assert weights_in(numpy.ones(12), basis, SEQUENCES) is None
