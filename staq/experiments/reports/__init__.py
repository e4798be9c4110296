"""What an experiment has found: figures, tables and one page that has them all."""

from staq.experiments.reports.page import write

__all__ = ["write"]
