"""The commands of `zloss`. A module is named after its commands.

A command reads its options, calls a function of the lab and shows the result.
"""
