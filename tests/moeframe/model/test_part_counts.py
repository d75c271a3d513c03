from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from moeframe.model.deepseek_v3 import DeepSeekV3, ModelPart
from moeframe.model.part_counts import RoleCounts, count_part
from moeframe.model.plan import build_plan
from moeframe.protocols.precision import Precision


@pytest.mark.parametrize("changes", [{}, {"q_lora_rank": None, "n_shared_experts": 2, "num_nextn_predict_layers": 0}])
@pytest.mark.parametrize(
    ("layers", "has_embedding", "has_head"),
    [(range(3), True, True), (range(2), True, False), (range(2, 3), False, True), (range(1, 2), False, False)],
)
def test_roles_are_counted_as_the_plan_of_the_modules_has_them(
    backends, tiny, changes, layers: range, has_embedding: bool, has_head: bool
) -> None:
    config, precision = replace(tiny, **changes), Precision.of("float32")
    compute, dispatcher = backends(config, precision)
    part = ModelPart(layers=layers, has_embedding=has_embedding, has_head=has_head)
    with torch.device("meta"):
        model = DeepSeekV3(config, compute, dispatcher, precision=precision, part=part)
    plan = build_plan(model)
    wanted: Counter[str] = Counter()
    for name, tensor in model.named_parameters():
        wanted[plan.role(name)] += tensor.numel()

    found = count_part(config, layers, has_embedding=has_embedding, has_head=has_head)

    assert found == RoleCounts(**wanted)
    assert found.total == sum(wanted.values())
