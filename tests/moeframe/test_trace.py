from __future__ import annotations

import pytest

from moeframe import trace
from moeframe.trace import Place


class Recorder:
    def __init__(self) -> None:
        self.seen: list[tuple[str, Place]] = []

    def enter(self, place: Place) -> None:
        self.seen.append(("enter", place))

    def leave(self, place: Place) -> None:
        self.seen.append(("leave", place))


def test_a_span_inherits_step_micro_batch_and_stage() -> None:
    recorder = Recorder()
    with trace.listen(recorder), trace.at(step=3), trace.at(micro_batch=1, stage=2):
        with trace.span(layer=7, phase="experts", direction="backward"):
            pass
    place = Place(step=3, micro_batch=1, stage=2, layer=7, phase="experts", direction="backward")
    assert recorder.seen == [("enter", place), ("leave", place)]


def test_nobody_listens_by_default_and_after_the_block() -> None:
    assert not trace.listening()
    with trace.listen(Recorder()):
        assert trace.listening()
    assert not trace.listening()


def test_leaving_restores_the_place_before() -> None:
    before = trace.current()
    with trace.at(step=1), trace.span(phase="data"):
        assert trace.current().phase == "data"
    assert trace.current() == before


def test_after_an_error_the_innermost_place_stays() -> None:
    recorder = Recorder()
    before = trace.current()
    with pytest.raises(ValueError, match="here"), trace.listen(recorder), trace.at(step=4):
        with trace.span(layer=2, phase="dispatch"):
            raise ValueError("here")
    assert str(trace.current()) == "step 4, layer 2, dispatch (forward)"
    assert recorder.seen[-1][0] == "leave"
    with trace.at(step=before.step), trace.span():  # what a later test starts from
        pass
    trace._ambient = before


def test_a_place_says_where_in_words() -> None:
    assert str(Place()) == "before the first step"
    assert (trace.told("at", Place()), trace.told("at", Place(step=3))) == ("before the first step", "at step 3")
    assert (
        str(Place(step=1, micro_batch=0, layer=3, phase="attend")) == "step 1, micro-batch 0, layer 3, attend (forward)"
    )


def test_a_listener_that_wants_beginnings_only_asks_for_no_marks() -> None:
    recorder = Recorder()
    with trace.listen(recorder, backward="begin"):
        assert trace.followed()
        assert not trace.listening()
        with trace.at(step=2):
            trace.begin(layer=3, phase="experts")
            assert str(trace.current()) == "step 2, layer 3, experts (backward)"
        assert trace.current().direction == "forward"
    assert not trace.followed()
    assert [(kind, place.phase) for kind, place in recorder.seen] == [("enter", "experts"), ("leave", "experts")]
