"""The commands of `zloss`, one module for each, with its name.

Nothing is computed here: a command reads its options, calls the lab and shows the result.
"""
