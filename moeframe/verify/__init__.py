"""The proof that a composition computes what one process computes (design, section 6)."""

from __future__ import annotations

from moeframe.verify.engine import verify
from moeframe.verify.findings import Finding
from moeframe.verify.fitting import compose_to_prove
from moeframe.verify.verdict import Row, Verdict

__all__ = ["Finding", "Row", "Verdict", "compose_to_prove", "verify"]
