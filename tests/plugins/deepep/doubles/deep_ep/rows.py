"""Moving rows between ranks."""

from __future__ import annotations

import torch
from torch import distributed


def exchange(parts: list[torch.Tensor], group) -> list[torch.Tensor]:
    """Send ``parts[r]`` to rank r; return what each rank sent here."""
    sent = torch.tensor([part.shape[0] for part in parts])
    received = torch.empty_like(sent)
    distributed.all_to_all_single(received, sent, group=group)
    flat = torch.cat(parts).contiguous()
    bits = flat.view(torch.uint8).reshape(flat.shape[0], -1) if flat.numel() else None
    width = parts[0].shape[1] * parts[0].element_size()
    out = torch.empty(int(received.sum()), width, dtype=torch.uint8)
    bits = torch.empty(0, width, dtype=torch.uint8) if bits is None else bits
    distributed.all_to_all_single(out, bits, received.tolist(), sent.tolist(), group=group)
    return [part.contiguous().view(parts[0].dtype).view(-1, parts[0].shape[1]) for part in out.split(received.tolist())]


def scatter(x: torch.Tensor, in_rank: torch.Tensor, group) -> torch.Tensor:
    """Send each row to the ranks that its row of `in_rank` marks; they arrive in the order (source rank, token)."""
    return torch.cat(exchange([x[in_rank[:, rank]] for rank in range(group.size())], group))


def gather(y: torch.Tensor, in_rank: torch.Tensor, received: list[int], group) -> torch.Tensor:
    """The transpose of `scatter`: sum, in float32, what comes back for each row. `received`: rows by source rank."""
    back = exchange(list(y.split(received)), group)
    total = torch.zeros(in_rank.shape[0], y.shape[1], dtype=torch.float32)
    for rank, part in enumerate(back):
        total[in_rank[:, rank]] += part.float()
    return total.to(y.dtype)
