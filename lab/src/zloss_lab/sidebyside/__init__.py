"""Training of many small networks side by side in one process, because a single small network leaves a GPU half idle.

    for group in grouped(experiments):
        stack = SideBySide([experiments[number] for number in group])
        outcomes = stack.train()                # the validations of each trial, and whether it ended early
        scores = stack.evaluate("test")         # each trial with the weights of its best validation

A trial is one experiment of a stack. Its result does not depend on the other trials. It starts from the weights and
sees the batches that `zloss_lab.training.fit` would give it, and it takes the same steps up to rounding.

- `trial_settings.py`: the settings that trials of a stack share, and the numbers in which they may differ.
- `weights.py`: the weights, one tensor for all trials.
- `network.py`: a step of all trials: forward, backward and plain SGD in batched products.
- `stacked_losses.py`: every loss with its gradient, which overwrites the logits.
- `batches.py`: the batches of every trial, in the order of its own seed.
- `dropout.py`: the random numbers of every trial, drawn from its own seed.
- `stacked_ranking.py`: ranks of the targets among all classes, for all trials.
- `outcomes.py`: the results of a trial.
- `stacked_training.py`: `SideBySide` with its epochs, its validations, and trials that end early.
"""

from zloss_lab.sidebyside.outcomes import TrialOutcome as TrialOutcome
from zloss_lab.sidebyside.outcomes import Validation as Validation
from zloss_lab.sidebyside.stacked_training import SideBySide as SideBySide
from zloss_lab.sidebyside.trial_settings import grouped as grouped
