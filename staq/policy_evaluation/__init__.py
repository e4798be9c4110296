"""The second act, and the first place that varies: from experience to q_k."""
