from __future__ import annotations

from moeframe_compat.policy.settings import Settings
from moeframe_compat.testing import compare_sources

DYNAMIC = "import torch\nclass Base(torch.nn.Module): pass\nfor _n in {names}:\n    globals()[_n] = lambda x: x\n"
PARSER = """
import argparse
def build_parser():
    p = argparse.ArgumentParser()
    for name in {names}:
        p.add_argument("--" + name, type=int, default=1)
    return p
"""
PROBE = Settings(probe=True)


def test_names_made_at_run_time_are_compared_with_heavy_imports_stubbed() -> None:
    report = compare_sources(DYNAMIC.format(names=["a", "b"]), DYNAMIC.format(names=["a"]), settings=PROBE)
    assert [f.symbol for f in report.breaking] == ["pkg.b"]
    assert report.skipped == []


def test_a_name_that_only_exists_at_run_time_is_no_removal() -> None:
    report = compare_sources("def a(x): return x\n", DYNAMIC.format(names=["a"]), settings=PROBE)
    assert report.breaking == []


def test_options_whose_names_are_computed_are_compared() -> None:
    report = compare_sources(PARSER.format(names=["ep", "tp"]), PARSER.format(names=["ep"]), settings=PROBE)
    assert [f"{f.rule} {f.symbol}" for f in report.breaking] == ["CL001 cli:--tp"]


def test_without_the_probe_the_report_says_what_was_not_checked() -> None:
    report = compare_sources(DYNAMIC.format(names=["a", "b"]), DYNAMIC.format(names=["a"]))
    assert any("PY001-PY005 in pkg" in s and "probe is off" in s for s in report.skipped)
    report = compare_sources(PARSER.format(names=["ep", "tp"]), PARSER.format(names=["ep"]))
    assert any("CL001-CL008 in pkg" in s for s in report.skipped)


def test_a_package_that_cannot_be_imported_is_said_to_be_unchecked() -> None:
    broken = "raise RuntimeError('no device')\nglobals()['x'] = 1\n"
    report = compare_sources(broken, broken, settings=PROBE)
    assert report.skipped == [
        "PY001-PY005 in pkg: it makes names at run time, and the probe failed: RuntimeError: no device"
    ]


def test_a_probed_package_has_no_network() -> None:
    text = "import socket\nsocket.create_connection(('127.0.0.1', 9))\nglobals()['x'] = 1\n"
    report = compare_sources(text, text, settings=PROBE)
    assert "the probe has no network" in report.skipped[0]
