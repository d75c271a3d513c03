"""A pseudo-random order of any length, computed position by position: no array of all indices."""

from __future__ import annotations

import hashlib
import math

__all__ = ["Permutation"]

_ROUNDS = 12
"""Even; with 8, the orders of very short lengths are not equally likely."""
_WORD = 0xFFFF_FFFF_FFFF_FFFF


def _mixed(value: int) -> int:
    """Return 64 bits that each depend on every bit of a 64-bit value (the finalizer of SplitMix64)."""
    value = ((value ^ (value >> 30)) * 0xBF58_476D_1CE4_E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D0_49BB_1331_11EB) & _WORD
    return value ^ (value >> 31)


class Permutation:
    """A keyed bijection of [0, length): an alternating Feistel network with cycle walking.

    An index is a pair (left, right) of [0, a) x [0, b), with a and b near the square root of `length` and a x b at
    least `length`. Each round adds a keyed hash of one half to the other, modulo its size, which can be undone, so a
    round is a bijection of the pairs. A pair that stands for an index beyond `length` walks on until it comes back,
    which is again a bijection; a x b exceeds `length` by less than a, so few ever walk.

    Args:
        length: at least 1.
        key: any numbers, such as a seed and an epoch; another key gives an unrelated order.
    """

    def __init__(self, length: int, *key: int) -> None:
        """Derive the sizes and the round keys."""
        self._length = length
        self._left = math.isqrt(length - 1) + 1
        self._right = -(-length // self._left)
        digest = hashlib.shake_128(repr(key).encode()).digest(8 * _ROUNDS)
        self._keys = [int.from_bytes(digest[start : start + 8], "little") for start in range(0, len(digest), 8)]

    def __len__(self) -> int:
        """Return the number of indices."""
        return self._length

    def __getitem__(self, index: int) -> int:
        """Return where `index` goes; both lie in [0, length).

        Raises:
            IndexError: it does not.
        """
        if not 0 <= index < self._length:
            raise IndexError(f"{index} is not one of {self._length} indices.")
        while True:
            index = self._encrypted(index)
            if index < self._length:
                return index

    def _encrypted(self, index: int) -> int:
        left, right = divmod(index, self._right)
        for number in range(0, _ROUNDS, 2):
            left = (left + _mixed(right ^ self._keys[number])) % self._left
            right = (right + _mixed(left ^ self._keys[number + 1])) % self._right
        return left * self._right + right
