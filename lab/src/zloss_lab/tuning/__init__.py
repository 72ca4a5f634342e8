"""Searching for hyper-parameters: studies that go on after any interruption, by one worker or many.

    space.py        what is searched, as data: one TOML file per loss in spaces/
    plan.py         what a study is asked to do, and the experiment that some hyper-parameters make of it
    sampling.py     which hyper-parameters come next: TPE, a function of the seed and of what is known
    pruning.py      which trials are stopped early
    workers.py      who works on a study, and who no longer does
    evaluators.py   how trials are trained: one after the other, or side by side in one process
    study.py        the study itself, a folder and a database; storage.py opens that
    rounds.py       trials that are trained at the same time
    trials.py       what is known of a trial, and which was the best
    transfer.py     whether the first validations tell who wins in the end
    recipe.py       a trial as a command and as a config of `zloss train`
    display.py      what is shown of all this
    commands.py     the command line

The test split is opened by none of them.
"""
