"""Buffers: one for each group and shape, freed by the last user; and what a job hears while kernels compile."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest
import torch
from moeframe_deepep.plugin import moeframe_offer_dispatchers
from torch import distributed

from moeframe.errors import ContractError
from moeframe.protocols.dispatcher import DispatcherContext

pytestmark = pytest.mark.usefixtures("no_folder_stays")

OFFERS = {offer.name: offer for offer in moeframe_offer_dispatchers()}


def build(name: str, hidden_size: int = 128, **options: Any):
    offer = OFFERS[name]
    if name == "deepep":
        options = {"api": "buffer", **options}
    return offer.build(
        offer.options(**options),
        DispatcherContext(
            ep_axis="ep",
            ep_size=distributed.get_world_size(),
            ep_rank=distributed.get_rank(),
            ep_group=distributed.group.WORLD,
            num_experts=8,
            hidden_size=hidden_size,
            top_k=2,
            max_tokens=64,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
        ),
    )


def open_buffers(name: str) -> int:
    import deep_ep

    return deep_ep.HybridEPBuffer.opened if name == "hybridep" else len(deep_ep.Buffer.opened)


def shared_and_freed(name: str) -> list[int]:
    before = open_buffers(name)
    dispatchers = [build(name), build(name), build(name, hidden_size=256)]
    seen = [open_buffers(name) - before]
    for dispatcher in dispatchers:
        dispatcher.release()
        dispatcher.release()
        seen.append(open_buffers(name) - before)
    return seen


@pytest.mark.parametrize("name", ["deepep", "hybridep"])
def test_a_buffer_is_shared_by_equal_shapes_and_freed_by_its_last_user(ranks, name: str) -> None:
    assert ranks.run(shared_and_freed, name, world_size=2) == [[2, 2, 1, 0]] * 2


def heard() -> list[str]:
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.levelname}: {record.getMessage()}")

    logger = logging.getLogger("moeframe_deepep.hybridep")
    logger.addHandler(listener := Listener())
    try:
        first, second = build("hybridep"), build("hybridep")
    finally:
        logger.removeHandler(listener)
    first.release()
    second.release()
    return lines


def test_compiling_is_announced_and_its_end_told_on_one_rank_and_once(ranks) -> None:
    on_rank_0, on_rank_1 = ranks.run(heard, world_size=2)

    begin, end = on_rank_0
    assert begin.startswith("WARNING: hybridep compiles its kernels (hidden size 128, 4 experts on each of 2 ranks)")
    assert end.startswith("WARNING: hybridep: kernels are ready after ")
    assert end.endswith(" s")
    assert on_rank_1 == []


def environment(folder: str) -> tuple[str | None, str | None]:
    build("hybridep", hidden_size=144, cache_dir=folder).release()
    return os.environ.get("USE_MNNVL"), os.environ.get("HYBRID_EP_CACHE_DIR")


def test_kernels_are_kept_in_a_folder_of_each_process_and_one_host_is_assumed(ranks, tmp_path) -> None:
    answers = ranks.run(environment, str(tmp_path), world_size=2)
    assert [mnnvl for mnnvl, _ in answers] == ["0", "0"]
    assert len({folder for _, folder in answers}) == 2


def refused(name: str) -> list[str]:
    dispatcher = build(name)
    ids_TK = torch.tensor([[0, 1]] * 4)
    layout = dispatcher.layout(ids_TK)
    x_TD, gates_TK = torch.zeros(4, 128, dtype=torch.bfloat16), torch.zeros(4, 2)
    calls = (
        lambda: dispatcher.layout(torch.zeros(65, 2, dtype=torch.int64)),
        lambda: dispatcher.layout(ids_TK.int()),
        lambda: dispatcher.dispatch(x_TD[:3], gates_TK, layout),
        lambda: dispatcher.dispatch(x_TD.float(), gates_TK, layout),
        lambda: dispatcher.dispatch(x_TD, gates_TK.double(), layout),
    )
    said = []
    for call in calls:
        try:
            call()
        except ContractError as error:
            said.append(str(error))
    dispatched = dispatcher.dispatch(x_TD, gates_TK, layout)
    try:
        dispatcher.combine(dispatched.rows_RD[:-1] if distributed.get_rank() == 0 else torch.zeros(1, 128), dispatched)
    except ContractError as error:
        said.append(str(error))
    dispatcher.release()
    return said


@pytest.mark.parametrize("name", ["deepep", "hybridep"])
def test_what_a_caller_gets_wrong_is_named_before_the_library_sees_it(ranks, name: str) -> None:
    for said in ranks.run(refused, name, world_size=2):
        assert [
            any(words in text for words in (expected,))
            for text, expected in zip(
                said,
                (
                    "has 65 tokens",
                    "must be int64 of shape (T, 2)",
                    "do not belong to this layout",
                    "x_TD has dtype torch.float32",
                    "gates_TK torch.float64",
                    "the experts returned",
                ),
                strict=True,
            )
        ] == [True] * 6
