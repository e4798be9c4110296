"""Action spaces of every kind as finite choices: what lets a discrete algorithm act in a continuous world."""

from staq.actions.boundary import BoundaryActions
from staq.actions.factored import ActionCodec, Factors

__all__ = ["ActionCodec", "BoundaryActions", "Factors"]
