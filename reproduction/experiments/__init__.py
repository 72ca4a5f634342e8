"""`zloss paper`: runs the experiments of the paper and keeps the records that `zloss report` shows.

    studies.py      the searches, one for each loss, and the settings that were best by a score
    sources.py      where settings come from: studies, or records where there are none
    chosen.py       settings that were chosen: the experiment that they make, and what of it was tuned or set
    stacks.py       networks trained side by side, as many at once as there is memory for
    collecting.py   from settings and seeds that are wanted to records; what is there is not trained again
    ledger.py       the file of a figure or table as it grows
    losses.py       figures 2 and 5: every loss with the settings that are best for each score
    parameters.py   figures 3 and 4: what a and b of the Z-loss do
    models.py       the models of table 2, by models.toml
    large_texts.py  table 2: each of them on a large text, for a fixed time, for some epochs or until it converges
    at_once.py      the same with several trainings at a time
    processes.py    jobs at the same time, each in a process of its own
    display.py      what is shown of them
    commands.py     the command line

Settings are chosen by the validation split. The test split is opened when that is done, for the numbers that are kept.
"""
