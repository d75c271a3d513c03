"""Which generation of the library is installed, as far as its source tells. Importable without torch."""

from __future__ import annotations

from typing import Literal

from moeframe.hooks import top_level_names

__all__ = ["Api", "chosen_api"]

Api = Literal["buffer", "elastic"]


def chosen_api(wanted: Literal["auto", "buffer", "elastic"]) -> Api:
    """Return the class that `deepep` uses: what the options want, else `ElasticBuffer` where the library has it.

    Version numbers say nothing here: three generations share one name, and branches one number.
    """
    if wanted != "auto":
        return wanted
    names = top_level_names("deep_ep")
    return "elastic" if names is not None and "ElasticBuffer" in names else "buffer"
