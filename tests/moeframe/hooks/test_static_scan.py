"""The oracle of reading is importing: whatever is decided must be what the imported module registers."""

from __future__ import annotations

import textwrap
from types import ModuleType

import pluggy
import pytest

from moeframe.errors import MoeframeError
from moeframe.hooks import PROJECT, hookspecs
from moeframe.hooks.kinds import KINDS
from moeframe.hooks.registration import read_offers, require_hooks
from moeframe.hooks.static_scan import Index, scan_module, scan_source

HEAD = """
from moeframe.hooks import DispatcherOffer, ShardingOffer, hookimpl
from moeframe import hooks
import moeframe.hooks as h

def some(name):
    return DispatcherOffer(name=name, summary="s", build=print, traits=print)

"""
OFFER = 'DispatcherOffer(name="ring", summary="s", build=print, traits=print)'

DECIDED = {
    "list": f"@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]",
    "tuple": f"@hookimpl()\ndef moeframe_offer_dispatchers():\n    '''Doc.'''\n    return ({OFFER},)",
    "nothing": "@hookimpl\ndef moeframe_offer_dispatchers():\n    return []",
    "constant": f"RING = {OFFER}\n@hookimpl\ndef moeframe_offer_dispatchers():\n    return [RING]",
    "constant_tuple": f"RINGS: tuple = ({OFFER},)\n@hookimpl\ndef moeframe_offer_dispatchers():\n    return RINGS",
    "local_list": f"@hookimpl\ndef moeframe_offer_dispatchers():\n    rings = [{OFFER}]\n    return rings",
    "local_offer": f"@hookimpl\ndef moeframe_offer_dispatchers():\n    import math\n    r = {OFFER}\n    return [r]",
    "named_name": f"RING = 'ring'\n@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]".replace(
        'name="ring"', "name=RING"
    ),
    "dotted": "@hooks.hookimpl\ndef moeframe_offer_dispatchers():\n"
    f"    return [h.{OFFER}, hooks.offers.{OFFER.replace('ring', 'other')}]",
    "two_kinds": f"@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]\n"
    "@hookimpl\ndef moeframe_offer_shardings():\n"
    "    return [ShardingOffer(name='zero', summary='s', build=print, traits=print)]",
    "observer": "@hookimpl\ndef moeframe_on_step_end(step):\n    print(step)",
    "api": f"moeframe_api = '>=1'\n@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]",
}

UNDECIDED = {
    "computed_name": "@hookimpl\ndef moeframe_offer_dispatchers():\n    return [some('ring')]",
    "joined_name": f"@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]".replace(
        '"ring"', '"ri" + "ng"'
    ),
    "keywords": "KW = {'name': 'ring'}\n@hookimpl\ndef moeframe_offer_dispatchers():\n"
    "    return [DispatcherOffer(summary='s', build=print, traits=print, **KW)]",
    "comprehension": "@hookimpl\ndef moeframe_offer_dispatchers():\n    return [some(n) for n in ('a', 'b')]",
    "star": f"MORE = [some('b')]\n@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}, *MORE]",
    "two_returns": "@hookimpl\ndef moeframe_offer_dispatchers():\n    if True:\n"
    f"        return []\n    return [{OFFER}]",
    "generator_in_it": "@hookimpl\ndef moeframe_offer_dispatchers():\n    def g():\n"
    f"        yield 1\n    return [{OFFER}]",
    "growing_list": f"RINGS = [{OFFER}]\nRINGS.append(some('b'))\n"
    "@hookimpl\ndef moeframe_offer_dispatchers():\n    return RINGS",
    "grown_tuple": f"RINGS = ({OFFER},)\nRINGS += (some('b'),)\n"
    "@hookimpl\ndef moeframe_offer_dispatchers():\n    return RINGS",
    "rebound_by_loop": f"RING = {OFFER}\nfor RING in [some('b')]:\n    pass\n"
    "@hookimpl\ndef moeframe_offer_dispatchers():\n    return [RING]",
    "rebound_by_global": f"RING = {OFFER}\ndef f():\n    global RING\n    RING = some('b')\nf()\n"
    "@hookimpl\ndef moeframe_offer_dispatchers():\n    return [RING]",
    "rebound_class": "DispatcherOffer = lambda name, **kw: some('b')\n"
    f"@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]",
    "shadowed_parameter": "def f(DispatcherOffer):\n    pass\n"
    f"@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]",
    "deleted": f"@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]\n"
    "@hookimpl\ndef moeframe_on_step_end(step):\n    pass\ndel moeframe_offer_dispatchers",
    "defined_twice": f"@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]\n"
    "@hookimpl\ndef moeframe_offer_dispatchers():\n    return []",
    "conditional": f"if True:\n    @hookimpl\n    def moeframe_offer_dispatchers():\n        return [{OFFER}]",
    "assigned_hook": f"@hookimpl\ndef offer():\n    return [{OFFER}]\nmoeframe_offer_dispatchers = offer\ndel offer",
    "other_decorator": "def more(f):\n    return lambda: [some('b')]\n"
    f"@hookimpl\n@more\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]",
    "own_marker": "import pluggy\nmine = pluggy.HookimplMarker('moeframe')\n"
    f"@mine\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]",
    "marked_later": f"def moeframe_offer_dispatchers():\n    return [{OFFER}]\nhookimpl(moeframe_offer_dispatchers)",
    "hook_by_loop": "@hookimpl\ndef moeframe_on_step_end(step):\n    pass\n"
    f"for f in [lambda: [{OFFER}]]:\n    moeframe_offer_dispatchers = hookimpl(f)",
    "globals": f"@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]\n"
    "globals()['moeframe_offer_dispatchers'] = hookimpl(lambda: [])",
    "sys_modules": f"import sys\n@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]\n"
    "sys.modules[__name__]",
    "exec": f"@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]\nexec('')",
    "imported_hook": "from moeframe_elsewhere import moeframe_offer_dispatchers\n"
    "@hookimpl\ndef moeframe_on_step_end(step):\n    pass",
    "import_star": f"from os.path import *\n@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]",
    "wrong_class": f"@hookimpl\ndef moeframe_offer_shardings():\n    return [{OFFER}]",
    "misspelt": f"@hookimpl\ndef moeframe_offer_dispatcher():\n    return [{OFFER}]",
    "unmarked": f"def moeframe_offer_dispatchers():\n    return [{OFFER}]",
    "options_of_marker": f"@hookimpl(optionalhook=True)\ndef moeframe_offer_dispatchers():\n    return [{OFFER}]",
    "asynchronous": f"@hookimpl\nasync def moeframe_offer_dispatchers():\n    return [{OFFER}]",
    "in_a_class": f"class Plugin:\n    @hookimpl\n    def moeframe_offer_dispatchers(self):\n        return [{OFFER}]",
    "twice": f"@hookimpl\ndef moeframe_offer_dispatchers():\n    return [{OFFER}, {OFFER}]",
    "falls_through": f"@hookimpl\ndef moeframe_offer_dispatchers():\n    for _ in [1]:\n        return [{OFFER}]",
    "matched_name": f"match [1]:\n    case RING:\n        pass\nRING = {OFFER}\n"
    "@hookimpl\ndef moeframe_offer_dispatchers():\n    return [RING]",
    "caught_name": f"RING = {OFFER}\ntry:\n    pass\nexcept OSError as RING:\n    pass\n"
    "@hookimpl\ndef moeframe_offer_dispatchers():\n    return [RING]",
    "no_hook": "x = 1",
    "syntax_error": "def (",
    "null_byte": "x = '\0'",
}


def _hooks() -> tuple[pluggy.PluginManager, dict[str, tuple[str, ...]]]:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager, {name: caller.spec.argnames for name, caller in vars(manager.hook).items() if name[0] != "_"}


def _registered(source: str) -> Index | None:
    """What the imported module registers; None when it cannot be imported or registered."""
    manager, specs = _hooks()
    module = ModuleType("plugin")
    try:
        exec(source, vars(module))
        hooks = require_hooks(manager, module, specs)
        offers = [
            (kind.name, offer.name)
            for kind in KINDS.values()
            if kind.hook in hooks
            for offer in read_offers(kind.hook, getattr(module, kind.hook)())
        ]
    except (MoeframeError, ImportError, SyntaxError, ValueError):
        return None
    return Index(offers=frozenset(offers), hooks=frozenset(hooks))


@pytest.mark.parametrize("case", DECIDED)
def test_what_is_decided_is_what_importing_registers(case: str) -> None:
    source = HEAD + DECIDED[case]
    scan = scan_source(source.encode(), frozenset(_hooks()[1]))
    assert scan.why == ""
    assert scan.index is not None
    assert scan.index == _registered(source)


@pytest.mark.parametrize("case", UNDECIDED)
def test_what_can_be_read_in_two_ways_is_undecided_and_says_why(case: str) -> None:
    scan = scan_source((HEAD + UNDECIDED[case]).encode(), frozenset(_hooks()[1]))
    assert scan.index is None
    assert scan.why


def test_a_module_without_source_is_undecided(site) -> None:
    site.folder.joinpath("compiled.pyc").write_bytes(b"")
    site.folder.joinpath("namespace").mkdir()
    hooks = frozenset(_hooks()[1])
    assert scan_module("compiled", hooks).why == "the module has no source file"
    assert scan_module("namespace", hooks).why == "the module has no source file"
    assert scan_module("absent", hooks).why == "the module was not found"


def test_a_finder_that_fails_leaves_the_module_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            raise RuntimeError(name)

    monkeypatch.setattr("sys.meta_path", [Broken])
    assert "RuntimeError: not_imported_yet" in scan_module("not_imported_yet", frozenset()).why


def test_an_undecided_module_still_mentions_its_literal_names() -> None:
    source = textwrap.dedent("""
        import broken
        OFFERS = [broken.SpecialOffer(name="fast_ring"), DispatcherOffer(name="slow_ring"), Coffee(name="espresso")]
    """)
    assert scan_source(source.encode(), frozenset()).mentions == {"fast_ring", "slow_ring"}


def test_the_encoding_that_a_source_declares_is_used() -> None:
    source = f"# coding: latin-1\n{HEAD}# \xe4\n{DECIDED['list']}".encode("latin-1")
    assert scan_source(source, frozenset(_hooks()[1])).index is not None
