"""The reproduction of the Z-loss paper: `experiments` runs it, `report` draws it. In no wheel; run from a checkout."""
