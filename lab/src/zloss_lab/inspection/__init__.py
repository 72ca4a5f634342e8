"""Commands that look at runs: `zloss evaluate`, `predict`, `runs` and `plot`."""
