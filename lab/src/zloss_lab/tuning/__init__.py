"""Search for hyper-parameters: studies with one worker or many, which go on after any interruption.

A study is a folder with a plan and a database. A trial is one choice of hyper-parameters, which a worker trains. Trials
are compared by a score on the validation split; the test split is never opened.

A search reads these modules from top to bottom:

- `space.py`: the hyper-parameters to search and their ranges, as data; `spaces/` has one TOML file for each loss.
- `plan.py`: the request that makes a study, and the experiment that a choice of hyper-parameters defines.
- `study.py`: the study itself; `trial_storage.py` opens its database.
- `sampling.py`: the choice of the next hyper-parameters, by TPE.
- `rounds.py`: trials that are trained at the same time.
- `evaluators.py`: two ways to train trials: one after the other, or side by side in one process.
- `pruning.py`: the rule that stops bad trials early.
- `workers.py`: signs of life of the processes that work on a study, and trials that were abandoned.
- `trials.py`: the record of a trial, and the best trials by any score.
- `transfer.py`: whether the first validations predict the final order of the trials.
- `recipe.py`: the best trial as a command and as a config of `zloss train`.
- `study_display.py`: tables and progress on the screen.
"""
