"""EN001: environment variables that the old release read by name, and the new one does not."""

from __future__ import annotations

import difflib
import re

from moeframe_compat.index.environment import environment
from moeframe_compat.model.snapshot import Sources
from moeframe_compat.rules.context import Context

_OTHERS = re.compile(
    r"HOME|USER|USERNAME|USERPROFILE|LOGNAME|HOSTNAME|(LOCAL)?APPDATA|PATH|PWD|SHELL|EDITOR|VISUAL|PAGER|BROWSER|DISPLAY"
    r"|TERM|COLORTERM|COLUMNS|LINES|LANG|LANGUAGE|TZ|TMPDIR|TEMP|TMP|NO_COLOR|FORCE_COLOR|CLICOLOR\w*|CI|DEBUG"
    r"|VIRTUAL_ENV|SOURCE_DATE_EPOCH|\w*_proxy|\w*_PROXY|RANK|(LOCAL|GROUP|ROLE)_(RANK|WORLD_SIZE)|WORLD_SIZE|NODE_RANK"
    r"|MASTER_(ADDR|PORT)|PYTHON\w+"
    r"|(LC|XDG|PIP|CONDA|GITHUB|SLURM|OMPI|PMI|PMIX|MPI|TORCH|TORCHELASTIC|PYTORCH|NCCL|CUDA|CUDNN|CUBLAS|ROCR"
    r"|HIP|NVIDIA|NVTE|OMP|MKL|KMP|OPENBLAS|HF|TRANSFORMERS|TOKENIZERS|WANDB|AWS|GOOGLE|AZURE|SSH|XLA|TF|JAX|RAY"
    r"|KUBERNETES)_\w+"
)
"""Variables of systems, launchers and libraries: what reads one in place of the package need not be seen here."""


def _put_together(name: str, sources: Sources) -> bool:
    """Are there texts that a name may be made of: its beginning in front of a brace or quote, or its end in quotes?"""
    cuts = [i for i, letter in enumerate(name) if letter == "_"]
    parts = [f"{name[: i + 1]}{mark}" for i in cuts for mark in ("{", "%", "'", '"')]
    for i in (-1, *cuts):
        end = name[i + 1 :]
        parts += [f"{mark}{word}{mark}" for word in (end, end.lower()) for mark in ("'", '"')]
        parts += [f"}}_{end}", f"'_{end}'", f'"_{end}"']
    return any(sources.hold(part) for part in parts)


def check_environment(ctx: Context) -> None:
    """What people set and nobody reads any more."""
    before, now = environment(ctx.old), environment(ctx.new)
    lost = {name: place for name, place in sorted(before.names.items()) if not now.may_read(name)}
    sources = ctx.new.snapshot.sources
    if lost and sources is None:
        ctx.skipped.add("EN001: the new release is a snapshot file, without the texts that may name a variable")
        return
    own = f"{ctx.old.package.upper().replace('.', '_')}_"
    fresh = [name for name in now.names if name not in before.names]
    for name, was in lost.items():
        if sources is not None and sources.contain(name):
            continue  # in a table, an error text, a file of settings
        if sources is not None and now.unknown > before.unknown and _put_together(name, sources):
            ctx.skipped.add(f"EN001 for {name}: names of variables are computed")
            continue
        new = next(iter(difflib.get_close_matches(name, fresh, 1, 0.5)), "")
        shared = bool(_OTHERS.fullmatch(name)) and not name.startswith(own)
        ctx.emit(
            "EN001",
            f"environment:{name}",
            old=name,
            new=new,
            at=now.names.get(new) or ctx.survivor(ctx.new.package),
            was=was,
            why=f"who sets {name} is ignored, and not told" + (f"; {new} is read now" if new else ""),
            fix=f"read {name} too, with a warning"
            + (f", and let {new} win" if new else "")
            + '; or record it in the ledger with surface = "environment"',
            severity="info" if shared else "",
            policy="not the package's own: a library may read it instead" if shared else "",
        )
