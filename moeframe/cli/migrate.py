"""`moeframe migrate`: old keys of recipe files become new ones, in place."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from pathlib import Path

from moeframe.config.migrate import Migration, migrate_file
from moeframe.config.paths import real_path
from moeframe.errors import Problem, RecipeError, UserInputError

__all__ = ["migrate"]


def migrate(recipes: Sequence[Path], *, check: bool, diff: bool) -> int:
    """Rewrite recipe files and say what was done.

    Args:
        recipes: files; those that they extend are rewritten only when they are named too.
        check: write nothing.
        diff: print the changes instead of making them.

    Returns:
        The exit code: 0 when every file has new keys only (after writing, where that is allowed), 1 when `check` finds
        old keys or a place is left that nobody but the user can decide.

    Raises:
        RecipeError: a file is no recipe; the others are done all the same.
        UserInputError: a file cannot be written.
    """
    problems: list[Problem] = []
    migrations: list[Migration] = []
    for path in dict.fromkeys(recipes):
        try:
            migrations.append(migrate_file(path))
        except RecipeError as error:
            problems += error.problems
    out = sys.stdout
    for migration in migrations:
        changed = migration.new != migration.old
        if changed and not (check or diff):
            _write(migration)
        if diff:
            out.writelines(_diff(migration))
        else:
            out.writelines(f"{line}\n" for line in migration.done)
            if not (changed or migration.undecided):
                out.write(f"{migration.path}: no old keys\n")
        for problem in migration.undecided:
            sys.stderr.write(f"{problem}\n")
    for line in _forgotten_bases(migrations):
        sys.stderr.write(f"{line}\n")
    if problems:
        raise RecipeError(problems)
    left = any(migration.undecided for migration in migrations)
    return 1 if left or (check and any(migration.new != migration.old for migration in migrations)) else 0


def _write(migration: Migration) -> None:
    """Replace a file as a whole or not at all; a link stays a link, and the permissions stay."""
    target = migration.path.resolve()
    part = target.with_name(f".{target.name}.part")
    try:
        part.write_bytes(migration.new)
        shutil.copymode(target, part)
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserInputError(f"{migration.path}: cannot be written: {error.strerror}.") from error


def _diff(migration: Migration) -> Iterator[str]:
    """Yield the changes of a file as a unified diff."""
    old, new = (text.decode("utf-8").splitlines(keepends=True) for text in (migration.old, migration.new))
    for line in unified_diff(old, new, str(migration.path), str(migration.path)):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _forgotten_bases(migrations: Sequence[Migration]) -> Iterator[str]:
    """Yield which files with old keys are extended, but were not named."""
    named = {real_path(migration.path) for migration in migrations}
    for migration in migrations:
        for base in migration.bases:
            if real_path(base) in named:
                continue
            named.add(real_path(base))
            try:
                behind = migrate_file(base)
            except RecipeError as error:
                yield str(error)
                continue
            if behind.done or behind.undecided:
                yield f"{base}: has old keys too, and {migration.path} extends it. Name it to rewrite it."
