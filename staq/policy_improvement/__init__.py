"""The one act in which algorithms of the family differ: from q_k and the past to π_{k+1}."""

from staq.updates.actor import ActorUpdate, GradientActor
from staq.updates.natural_gradient import NaturalGradientUpdate
from staq.updates.policy_update import PolicyUpdate
from staq.updates.stack import StackUpdate

__all__ = ["ActorUpdate", "GradientActor", "NaturalGradientUpdate", "PolicyUpdate", "StackUpdate"]
