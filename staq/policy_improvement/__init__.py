"""The third act, and the second place that varies: from q_k and what is kept of the past to π_{k+1}."""
