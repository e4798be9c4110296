"""Files: atomic writes, exact checkpoints, exported policies, environments as data."""
