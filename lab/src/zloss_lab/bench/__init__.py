"""`zloss bench`: what a training step costs, of every head and of whole networks, and what evaluation and data cost.

entries.py       the heads that are measured, ours and others', by name; peers.py has the others' ways to a softmax
gate.py          a head whose result is wrong is not measured
cases.py         Case: what is measured, and at what size; race.py lets cases take turns and keeps the records
timing.py        bursts of steps; memory.py has peaks, and what is free; provenance.py tells where it was
layer_suite.py  model_suite.py  ranking_suite.py  data_suite.py     the cases of `zloss bench output` and so on
report.py        records as tables and as a plot; commands.py is the command line
"""
