"""The command line: one module per command, and what a run is."""
