"""The reading of runs, for the commands `zloss evaluate`, `predict`, `runs` and `plot`."""
