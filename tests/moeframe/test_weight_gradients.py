from __future__ import annotations

from moeframe.protocols.weight_gradients import postpone, postponing


def test_work_waits_only_for_whoever_asked() -> None:
    done: list[str] = []
    assert not postpone(lambda: done.append("nobody asked"))
    with postponing() as outer:
        assert postpone(lambda: done.append("outer"))
        with postponing() as inner:
            assert postpone(lambda: done.append("inner"))
        assert postpone(lambda: done.append("outer again"))
    assert not postpone(lambda: done.append("nobody asks any more"))
    assert (len(outer), len(inner), done) == (2, 1, [])
    outer.run()
    outer.run()
    assert done == ["outer", "outer again"]
