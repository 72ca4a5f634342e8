"""Benchmarks, for `zloss bench`: the time and the memory of training steps, of evaluation and of data preparation.

A suite makes cases. A case is one thing to measure at one size. Its result is checked first; then the cases of a group
take turns.

- `entries.py`: the heads that are measured, by key; `peers.py` has softmaxes of other libraries.
- `cases.py`: `Case`, the base class of all cases.
- `output_suite.py`, `model_suite.py`, `eval_suite.py` and `data_suite.py`: the cases of each command.
- `random_inputs.py`: made-up inputs, targets and texts.
- `steps.py`: training steps, plain or as a CUDA graph.
- `gate.py`: the check of a head against its definition, before it is measured.
- `race.py`: cases take turns, and the file of records is written.
- `timing.py`: the time of bursts of steps; `memory.py`: peaks of memory and the memory that is free.
- `schema.py`: the fields of the records of each suite.
- `provenance.py`: device, driver, versions and commit of a record.
- `profiling.py`: the launches of one captured step, for `zloss bench profile`.
- `result_tables.py`: records as tables; `time_plot.py`: records as a plot.
"""
