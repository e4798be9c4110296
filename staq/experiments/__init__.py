"""Every experiment of the paper: plans as data, backends that run them, the record of runs, reports."""
