"""`python -m reproduction run`: runs the experiments of the paper and keeps the records, which the report shows.

    studies.py            the searches, one for each loss, and the settings that were best by a score
    sources.py            the sources of settings: studies, or records if there are no studies
    chosen.py             chosen settings: the experiment that they make, and which of them were tuned or set
    stacks.py             networks trained side by side, as many at once as there is memory for
    collecting.py         from wanted results to records: only missing results are trained
    ledger.py             the file of a figure or table as it grows
    loss_figures.py       figures 2 and 5: every loss with the settings that are best for each score
    parameter_figures.py  figures 3 and 4: the effect of a and b of the Z-loss
    large_texts/          table 2: models on a large text, for a fixed time, for some epochs or until they converge
    messages.py           messages about the course of an experiment
    commands/             the command line

Settings are chosen by the validation split. The test split is opened after that, for the scores in the records.
"""
