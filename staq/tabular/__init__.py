"""Exact mirror descent on finite MDPs in float64: the paper's Secs. 3–5, without any approximation.

Stands alone: it needs NumPy and SciPy, not PyTorch. Functions of states and actions are arrays [S, A]; a policy is the
array of its log-probabilities. Names are those of the deep losses wherever the mathematics is the same.
"""
