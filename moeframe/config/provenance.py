"""Where each value of a recipe came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from moeframe.config.tree import DEFAULT, Origin, Tree
from moeframe.errors import Location

__all__ = ["Provenance"]

_OVERRIDES = 1_000_000
"""Layer of overrides: above every file."""


class Provenance(Mapping[str, Origin]):
    """Origin of every dotted path. `str()` of an origin is what `explain` prints.

    Layers order the sources: defaults are -1, files 0, 1, ... in the order of merging, overrides come last.
    """

    def __init__(
        self,
        origins: Mapping[str, Origin] | None = None,
        key_places: Mapping[str, Origin] | None = None,
        files: tuple[str, ...] = (),
        tree: Tree | None = None,
        layers: Mapping[str, int] | None = None,
    ) -> None:
        """Keep origins, places of keys, files from the lowest layer to the highest, and the untyped tree.

        `layers` are those of values whose origin does not tell.
        """
        self._layers = dict(layers or {})
        self._origins = dict(origins or {})
        self._key_places = dict(key_places or {})
        self.files = files
        self._tree: Tree = tree if tree is not None else {}

    def __getitem__(self, path: str) -> Origin:
        """Return the origin of a value; KeyError when the recipe has none at `path`."""
        return self._origins[path]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the dotted paths."""
        return iter(self._origins)

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._origins)

    def where(self, path: str) -> Location | None:
        """Return the place of a value, or of the nearest section above it; None for a recipe without a file."""
        while path:
            for table in (self._origins, self._key_places):
                if path in table and table[path].where is not None:
                    return table[path].where
            path = path.rpartition(".")[0]
        return Location(file=self.files[-1]) if self.files else None

    def layer(self, path: str) -> int:
        """Return the layer that gave a value."""
        if path in self._layers:
            return self._layers[path]
        origin = self._origins.get(path, DEFAULT)
        if origin.kind == "override":
            return _OVERRIDES
        if origin.kind == "file" and origin.where is not None:
            return max(index for index, file in enumerate(self.files) if file == origin.where.file)
        return -1

    def is_explicit(self, path: str) -> bool:
        """Return whether a file or an override gave the value."""
        return self._origins.get(path, DEFAULT).kind in ("file", "override")

    def with_origin(self, path: str, origin: Origin, layer: int | None = None) -> Provenance:
        """Return a copy in which one value came from elsewhere, decided at `layer` if its origin does not tell."""
        layers = self._layers if layer is None else {**self._layers, path: layer}
        return Provenance({**self._origins, path: origin}, self._key_places, self.files, self._tree, layers)

    def written(self, path: str) -> Tree | None:
        """Return what was written at `path` before it had a type, None when nothing was."""
        tree: Tree = self._tree
        for key in path.split("."):
            if not isinstance(tree, dict) or key not in tree:
                return None
            tree = tree[key]
        return tree

    @property
    def key_places(self) -> Mapping[str, Origin]:
        """Where the keys stand."""
        return self._key_places
