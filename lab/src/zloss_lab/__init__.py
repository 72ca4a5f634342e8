"""The lab: corpora, training, tuning and benchmarks for the library `zloss`, which never imports the lab.

- `cli.py` and `commands/`: the command `zloss`; `command_options.py`, `terminal.py`, `progress_bars.py` and
  `score_table.py` have the parts that several commands share; `demo.py` is the demonstration
- `corpora/`: texts as arrays of classes; `ngrams.py` and `permutation.py` make batches of them
- `networks.py` and `hidden.py`: language models, which predict a word from the words before it
- `experiments.py`: experiments from presets, files and settings; `configuration.py` and `toml_tables.py` read tables
- `training/`: the training of a network; `runs.py` has its folder, and `stopwatch.py` its time
- `evaluation.py`: scores of a network; `confidence_intervals.py` has their intervals for a sample
- `inspection/`: trained networks, and tables and pictures of runs
- `tuning/`: searches for hyper-parameters; `sidebyside/` trains many small networks at once
- `bench/`: benchmarks
- `records.py` and `durable.py`: files of records, and files that are complete or absent; `writer_locks.py` lets one
  process write at a time, and `opened_folder.py` follows no links
- `kernels/`: Triton kernels
"""
