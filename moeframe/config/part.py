"""A backend that a recipe chose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from moeframe.hooks.offers import Offer

__all__ = ["Part"]

OfferT = TypeVar("OfferT", bound=Offer)
TraitsT = TypeVar("TraitsT")


@dataclass(frozen=True, kw_only=True)
class Part(Generic[OfferT, TraitsT]):
    """A backend that was chosen."""

    offer: OfferT
    options: Any
    """An instance of the offer's options dataclass."""
    traits: TraitsT

    def build(self, *context: Any) -> Any:
        """Build the backend for its context; imports torch."""
        return self.offer.build(self.options, *context)
