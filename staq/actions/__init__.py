"""Action spaces of every kind as finite choices: what lets a discrete algorithm act in a continuous world."""

from staq.actions.boundary import BoundaryActions
from staq.actions.factored import Coding, Factors

__all__ = ["BoundaryActions", "Coding", "Factors"]
