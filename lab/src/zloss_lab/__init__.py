"""Experiments and demonstrations. They import the library, never the reverse, and may need more than torch."""
