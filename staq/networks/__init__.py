"""Q-networks of one shape by the hundred, and everything that makes them fast."""
