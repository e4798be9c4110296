"""What StaQ costs. ``make bench`` runs ``python -m benchmarks``."""
