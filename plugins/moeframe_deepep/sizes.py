"""Limits and buffer sizes of the library, by formula. Importable without torch, and without the library.

Sources: ``csrc/config.hpp``, ``csrc/kernels/{configs.cuh,intranode.cu}`` and ``csrc/hybrid_ep/`` of DeepEP, branch
hybrid-ep at 94a9f8f; ``deep_ep/buffers/elastic.py`` and ``deep_ep/include`` of its branch main at dd758ca.
"""

from __future__ import annotations

from typing import Final

from moeframe.protocols.dispatcher import Buffer, BufferRequest

__all__ = [
    "BF16",
    "buffer_bytes",
    "elastic_bytes",
    "gate_width",
    "hybrid_bytes",
    "hybrid_tokens",
    "packed_width",
]

BF16: Final = 2
"""Bytes of an element: every row travels in bfloat16."""

_LINE: Final = 16
"""Elements of 32 bytes, what the bulk copies of `Buffer` move at least."""
_MAX_TOPK: Final = 128
_MAX_SCALES: Final = 128
_RECEIVED_TOKENS: Final = 256
_INTS_OF_A_QUEUE: Final = 5
_WORKSPACE: Final = 32 * 2**20
_HYBRID_CHUNK: Final = 64
_HYBRID_LEAST: Final = 512
_HYBRID_BLOCKS: Final = 108


def gate_width(top_k: int) -> int:
    """Return the bfloat16 elements in front of a row that hold its float32 gates, in multiples of 32 bytes."""
    return _rounded(2 * top_k)


def packed_width(hidden_size: int, top_k: int) -> int:
    """Return the bfloat16 elements of a row with its gates, both in multiples of 32 bytes."""
    return gate_width(top_k) + _rounded(hidden_size)


def _rounded(elements: int) -> int:
    return -(-elements // _LINE) * _LINE


def buffer_bytes(request: BufferRequest, num_sms: int) -> tuple[Buffer, ...]:
    """Return what `Buffer` holds: `Config.get_nvl_buffer_size_hint` of the default configurations, and a workspace."""
    width = packed_width(request.hidden_size, request.top_k)
    channels, ranks = num_sms // 2, request.ep_size
    a_token = width * BF16 + _MAX_TOPK * (8 + 4) + _MAX_SCALES * 4
    queues = channels * ranks * (_INTS_OF_A_QUEUE * 4 + _RECEIVED_TOKENS * a_token)
    return (
        Buffer(
            name="receive queues over NVLink",
            num_bytes=-(-queues // 128) * 128,
            formula=f"{channels} channels x {ranks} ranks x ({_RECEIVED_TOKENS} tokens x {a_token} B + 20 B); a token: "
            f"{width} bf16, {_MAX_TOPK} ids of 8 B and gates of 4 B, {_MAX_SCALES} scales of 4 B "
            "(Config.get_nvl_buffer_size_hint)",
        ),
        Buffer(name="workspace", num_bytes=_WORKSPACE, formula="32 MiB (NUM_WORKSPACE_BYTES)"),
    )


def elastic_bytes(request: BufferRequest) -> tuple[Buffer, ...]:
    """Return the payload that `ElasticBuffer` must hold; the library adds queues of its own and rounds to 2 MiB."""
    width = packed_width(request.hidden_size, request.top_k)
    tokens = request.max_tokens * request.ep_size
    return (
        Buffer(
            name="received rows, at least",
            num_bytes=tokens * width * BF16,
            formula=f"{request.max_tokens} tokens x {request.ep_size} ranks x {width} bf16; a lower bound, the library "
            "computes the whole at run time (calculate_elastic_buffer_size)",
        ),
    )


def hybrid_tokens(max_tokens: int) -> int:
    """Return the tokens of a rank that `HybridEPBuffer` is made for: at least 512, in chunks of 64."""
    return -(-max(max_tokens, _HYBRID_LEAST) // _HYBRID_CHUNK) * _HYBRID_CHUNK


def hybrid_bytes(request: BufferRequest) -> tuple[Buffer, ...]:
    """Return what `HybridEPBuffer` holds inside one NVLink domain; flags of a few KB are left out."""
    per_rank, ranks, hidden = hybrid_tokens(request.max_tokens), request.ep_size, request.hidden_size
    tokens, experts = per_rank * ranks, request.num_experts
    of = f"{per_rank} tokens x {ranks} ranks = {tokens} tokens"
    return (
        Buffer(
            name="rows of dispatch and combine",
            num_bytes=tokens * hidden * BF16,
            formula=f"{of} x {hidden} bf16 (every token of the group may come)",
        ),
        Buffer(
            name="gates of dispatch and combine",
            num_bytes=tokens * experts * 4,
            formula=f"{of} x {experts} experts x 4 B",
        ),
        Buffer(name="scales", num_bytes=tokens * (hidden // 128) * 4, formula=f"{of} x {hidden // 128} x 4 B"),
        Buffer(
            name="gathered routing",
            num_bytes=tokens * experts,
            formula=f"{of} x {experts} experts x 1 B",
        ),
    )
