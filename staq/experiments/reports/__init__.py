"""What an experiment has found: figures, tables and one page that has them all."""

from staq.reports.page import write

__all__ = ["write"]
