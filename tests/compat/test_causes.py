from __future__ import annotations

from moeframe_compat.testing import compare_sources


def test_one_rename_over_many_callables_is_one_cause() -> None:
    before = "".join(f"def f{i}(x, model_comm_pgs=None): return x\n" for i in range(40))
    before += "class C:\n    def __init__(self, model_comm_pgs=None): self.model_comm_pgs = model_comm_pgs\n"
    report = compare_sources(before, before.replace("model_comm_pgs", "pg_collection"))
    assert len(report.breaking) == 42
    assert len(report.causes) == 1


def test_a_removed_object_and_its_reexport_are_one_cause() -> None:
    report = compare_sources(
        {"__init__.py": "from pkg.a import f\n", "a.py": "def f(): return 1\n"}, {"__init__.py": "", "a.py": ""}
    )
    assert len(report.causes) == 1


def test_the_contents_of_a_removed_module_are_not_listed() -> None:
    report = compare_sources(
        {"__init__.py": "", "a.py": "def f(): pass\ndef g(): pass\nclass C: pass\n"}, {"__init__.py": ""}
    )
    assert [f.rule for f in report.breaking] == ["PY002"]


def test_an_identical_release_has_no_finding_and_additions_are_listed() -> None:
    report = compare_sources("def f(): pass\n", "def f(): pass\ndef g(): pass\n")
    assert report.findings == []
    assert report.added == ["pkg.g"]


def test_the_id_of_a_finding_does_not_depend_on_its_line() -> None:
    one = compare_sources("def f(a): pass\n", "def f(b): pass\n")
    two = compare_sources("def f(a): pass\n", "import os\n\n\ndef f(b): pass\n")
    assert [f.id for f in one.findings] == [f.id for f in two.findings]
