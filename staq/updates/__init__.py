"""The one act in which algorithms of the family differ: from q_k and the past to π_{k+1}."""

from staq.updates.policy_update import PolicyUpdate
from staq.updates.stack import StackUpdate

__all__ = ["PolicyUpdate", "StackUpdate"]
