"""Many small networks trained side by side, in one process: one network at a time would leave a GPU half asleep.

    for group in grouped(experiments):
        stack = SideBySide([experiments[number] for number in group])
        outcomes = stack.train()                # the best validation of each, and what became of it
        scores = stack.evaluate("test")         # each with the weights of its best validation

    trials.py       what the trials of a stack have in common, and what they may differ in
    weights.py      their weights, one tensor for all trials
    losses.py       every loss with its gradient, which takes the place of the logits
    network.py      a step of all trials: forward, backward and plain SGD in batched products
    batches.py      the batches of every trial, in the order of its own seed
    dropout.py      the random numbers of every trial, those of its own seed
    ranking.py      ranks of the targets over all classes, for all trials
    training.py     SideBySide: epochs, validations, trials that end early

What becomes of a trial depends on its own experiment, not on its neighbours: it starts with the weights and sees the
batches of the same experiment trained by itself (`zloss_lab.training.fit`), and takes the same steps up to rounding.
"""

from zloss_lab.sidebyside.training import SideBySide as SideBySide
from zloss_lab.sidebyside.training import TrialOutcome as TrialOutcome
from zloss_lab.sidebyside.training import Validation as Validation
from zloss_lab.sidebyside.trial_settings import grouped as grouped
