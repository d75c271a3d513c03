"""Writes overlap.md and overlap.png from traits, matrix.json and overlap.json: ``python docs/make_overlap.py``.

overlap.json is what ``moeframe bench overlap recipes/deepseek_v3/overlap_2gpu.yaml --rounds 2 --slow 1500`` wrote, and
overlap_deepep.json the same with ``dispatcher.name=deepep``, without the trace.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from moeframe.bench.picture import draw
from moeframe.bench.report import lines
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.hooks.offers import Offer
from moeframe.protocols.precision import Precision
from moeframe.verify.matrix.record import Entry, load_entries

HERE: Final = Path(__file__).parent
PAGE: Final = HERE / "overlap.md"
MEASURED: Final = HERE / "overlap.json"
MEASURED_DEEPEP: Final = HERE / "overlap_deepep.json"
PICTURE: Final = HERE / "overlap.png"

_TEMPLATE: Final = """\
# Dispatch and combine behind compute

The schedule `overlap_1f1b` runs two micro-batches at a time, one forward and one backward, phase by phase on two
streams: while tokens of one travel, the other computes.

```yaml
schedule: {name: overlap_1f1b}
train: {micro_batch_size: 2}    # four micro-batches a step; with one there is no partner
```

```console
$ moeframe check recipes/quickstart.yaml schedule.name=overlap_1f1b train.micro_batch_size=2
recipes/quickstart.yaml: good
...
  schedule    overlap_1f1b: dispatch and combine of one micro-batch run beside the compute of the next, layer by layer
...
```

The numbers stay those of `accumulate`, on a CPU too, where one thread runs the same order without a gain; `moeframe
verify` proves a recipe with it as with any other.

## What runs beside what

The forward of micro-batch i + 1 meets the backward of micro-batch i, layer j the j-th layer from the other end:

```text
communication:  combine backward | dispatch forward -> dispatch backward          | combine forward
compute:        attend forward   | experts backward -> weights -> experts forward | attend backward
```

*weights* are the weight gradients of the routed experts: dispatch backward waits for input gradients only, so these run
beside it (`schedule.options.split_backward`). The order of exchanges follows from the list of phases alone, so it is
the same on every rank. The first forward and the last backward of a step have no partner: of N micro-batches at most
(N - 1) / N can hide. Embedding, head and loss run alone; a dense layer has nothing to send.

The host waits for the device once a layer, in the dispatcher's `layout`. It does so after the device was given the
experts' backward, and on the stream of communication.

## Measured

![Both streams of the measured step](overlap.png)

Two MoE layers of a forward, and what ran meanwhile, as the profiler saw it; hatched: backward. Made by:

<!-- not run: measures two GPUs -->
```console
$ moeframe bench overlap recipes/deepseek_v3/overlap_2gpu.yaml --rounds 2 --slow 1500
```

```text
{measured}
```

And with DeepEP, whose exchanges are shorter still:

<!-- not run: measures two GPUs -->
```console
$ moeframe bench overlap recipes/deepseek_v3/overlap_2gpu.yaml --rounds 2 dispatcher.name=deepep
```

```text
{deepep}
```

`hidden`, `ceiling` and `of paired` are shares of `comm ms`, which grows when kernels run beside others; `ceiling` is
a share of time, so it is not exactly (N - 1) / N. A step is not faster by all that is hidden. Between two GPUs of one
NVLink domain exchanges are short, they take multiprocessors and memory bandwidth from the kernels beside them, and
what dispatch and combine do besides (gathering, sorting, summing rows) needs as many multiprocessors as compute, on
any stream. `--slow` makes each exchange longer, as between nodes, and says so. `moeframe bench overlap` refuses a
CPU.

## What is freed between phases

A tensor that no later phase takes and no backward reads gives its storage back right after the forward; a phase with
its inputs and outputs is forgotten once its backward has run. Who still reads a tensor is what backends state in their
traits, here in bfloat16:

{dispatchers}

{computes}

| tensor | its storage is freed unless |
|---|---|
| what `dispatch` was given | `keeps_dispatch_input`, `saves_norm_output`, a shared expert, or a router of its dtype |
| the rows that `dispatch` returned | `keeps_expert_input`, `saves_expert_input`, or `experts` are recomputed |
| what `combine` was given | `keeps_combine_input` or `saves_expert_output` |
| what the shared expert returned | `saves_expert_output` |

A storage that is part of a larger one, or that another output of the phase shares, is never freed. With
`debug.poison: true` storages are filled with NaN instead, and who reads one is named. `moeframe plugins test NAME` does
the same with a dispatcher and names the trait that promised too much.

## With what it works

{matrix}

Columns are dispatchers; refused is what a machine without GPUs refuses, and [matrix.md](matrix.md) has the proofs and
the reason of each refusal. Besides these:

- `sharding: fsdp2` and `hsdp` need `reshard_after_forward: false`, as every schedule that runs weight gradients apart.
  They sum gradients once at the end of a step then, whole until that: more memory, fewer messages.
- `train.recompute: full` gives a layer one backward, which cannot run phase by phase: use `selective` or `none`.
- `parallel.pp` above 1 is refused: the phases of a whole model are paired, not those of a stage. `dualpipev` and the
  other pipelines overlap stages of ranks instead, not phases: torch runs a forward and a backward that `dualpipev` puts
  together one after the other, and what would replace that needs private state of its schedules.
- `train.compile` is refused, as with every schedule that runs weight gradients apart.
- With `dispatcher.options.num_sms` (of `deepep`), or NCCL's `NCCL_MAX_CTAS` (of `alltoall` and `allgather`), exchanges
  take fewer multiprocessors from the compute beside them, for longer. Measure before you set one: on one H200, with the
  same layers, a group of one rank and a kernel that copied the bytes of each exchange beside them, steps took 2992 ms
  with 32 blocks, 3010 with 16, 3021 with 8 and 3046 with 4 (`accumulate` with 32: 3188). Exchanges without any copy:
  2955 ms, and `accumulate` 3092; the GPU idles 38 and 101 ms in a profiled step of these.
- One micro-batch a step has no partner; `moeframe check` and `plan` note it.
- A dispatcher without `async_comm` blocks, so it computes right and hides nothing. `CUDA_DEVICE_MAX_CONNECTIONS=1` is
  refused on GPUs: two streams need two queues.

```console
$ moeframe check recipes/quickstart.yaml schedule.name=overlap_1f1b train.recompute=full
error: train.recompute=full: ...given full, which gives a layer one backward; ...
```

## For authors of backends

A dispatcher takes part by its traits; streams, events and freeing are the schedule's. It works on the current stream
and keeps what a call needs in its layout and handle. A compute backend that can split a backward hands the rest to
`moeframe.protocols.weight_gradients.postpone`. A sharding states `runs_phases` when its units may be run by
`Unit.methods` and their modules alone, with gradients summed in `finish_gradients` after `hold_gradients`. A schedule
of your own takes `Stage.nodes`: phases with the names of what they take, give and free.

<!-- Made by docs/make_overlap.py from traits, matrix.json and overlap.json; change it there. -->
"""

_SCHEDULE: Final = "overlap_1f1b"
_DISPATCHER_TRAITS: Final = (
    "keeps_dispatch_input",
    "keeps_expert_input",
    "keeps_combine_input",
    "async_comm",
    "host_syncs_per_layer",
)
_COMPUTE_TRAITS: Final = (
    "saves_expert_input",
    "saves_expert_output",
    "saves_norm_output",
    "splits_expert_backward",
)


def page() -> str:
    """Return the page as it should be now."""
    catalog = Catalog(build_plugin_manager((), listing=True))
    parts = {
        "measured": _report(MEASURED),
        "deepep": _report(MEASURED_DEEPEP),
        "dispatchers": _traits(catalog, "dispatcher", _DISPATCHER_TRAITS),
        "computes": _traits(catalog, "compute", _COMPUTE_TRAITS),
        "matrix": _matrix(load_entries(HERE / "matrix.json")),
    }
    text = _TEMPLATE
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return text


def _report(file: Path) -> str:
    return "\n".join(line.rstrip() for line in lines(json.loads(file.read_text(encoding="utf-8"))))


def _traits(catalog: Catalog, kind: str, traits: Sequence[str]) -> str:
    def row(offer: Any) -> list[str]:
        found = offer.traits(offer.options(), Precision.of("bfloat16"))
        return [f"`{offer.name}`", *(str(getattr(found, trait)).lower() for trait in traits)]

    return _table([kind, *(f"`{trait}`" for trait in traits)], _offers(catalog, kind), row)


def _offers(catalog: Catalog, kind: str) -> Iterator[Offer]:
    """Yield what ships with moeframe."""
    for name in catalog.names(kind):
        yield catalog.resolve(kind, name)


def _matrix(entries: Sequence[Entry]) -> str:
    """Return a row for each sharding and a column for each dispatcher; a cell says what holds for which recompute."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for entry in entries:
        values = dict(override.split("=", 1) for override in entry.overrides)
        if values["schedule.name"] == _SCHEDULE:
            place = (values["sharding.name"], values["dispatcher.name"])
            cells.setdefault(place, {})[values["train.recompute"]] = entry.status
    dispatchers = list(dict.fromkeys(dispatcher for _, dispatcher in cells))

    def row(sharding: str) -> list[str]:
        return [f"`{sharding}`", *(_summary(cells[sharding, dispatcher]) for dispatcher in dispatchers)]

    return _table(["", *(f"`{name}`" for name in dispatchers)], dict.fromkeys(sharding for sharding, _ in cells), row)


def _summary(statuses: dict[str, str]) -> str:
    """Return the status of all kinds of recompute, as short as it can be said."""
    proved = [recompute for recompute, status in statuses.items() if status == "proved"]
    if not proved:
        return "refused"
    return "proved" if len(proved) == len(statuses) else f"proved with {' and '.join(sorted(proved))}"


def _table(heading: Sequence[str], rows: Any, row: Callable[[Any], list[str]]) -> str:
    table = [heading, ["---"] * len(heading), *map(row, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)


def main() -> int:
    """Write both."""
    PAGE.write_text(page(), encoding="utf-8")
    draw(json.loads(MEASURED.read_text(encoding="utf-8")), PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
