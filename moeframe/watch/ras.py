"""NCCL's own report (RAS): whether its processes and communicators live and agree. It knows no step, layer or phase."""

from __future__ import annotations

import os
import socket
from typing import Final

__all__ = ["ask_ras"]

_ADDRESS: Final = "localhost:28028"
"""Where NCCL >= 2.24 listens unless NCCL_RAS_ADDR says otherwise."""
_LIMIT_S: Final = 5.0


def ask_ras() -> str:
    """Return the verbose status that NCCL on this machine gives, "" where none answers."""
    host, _, port = os.environ.get("NCCL_RAS_ADDR", _ADDRESS).rpartition(":")
    try:
        with socket.create_connection((host.strip("[]") or "localhost", int(port)), timeout=_LIMIT_S) as connection:
            connection.sendall(b"TIMEOUT 3\nVERBOSE STATUS\n")
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
    except (OSError, ValueError):
        return ""
    return b"".join(parts).decode(errors="replace")
