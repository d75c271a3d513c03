"""The proof that a composition computes what one process computes (design, section 6)."""

from __future__ import annotations

from moeframe.verify.engine import verify
from moeframe.verify.findings import Finding
from moeframe.verify.verdict import Row, Verdict

__all__ = ["Finding", "Row", "Verdict", "verify"]
