"""Find the defaults of every head: `python -m benchmarks.head_defaults DATA`.

DATA is a folder with the corpora of `benchmarks.head_corpora`. Results are written to
`records/head_defaults.cpu.jsonl` after every trial, and a trial that is recorded is not run again. So the program can
be stopped at any time and started again.

Two corpora choose, Penn Treebank and Yoochoose 1/64. Every head gets eight settings on each: seven pairs of optimizer
and rate, and a rate between or beyond. The sampled softmax, the rival that is compared most, gets further stages.
Each one changes one thing of the best setting so far: the rate of the trunk, the initial scale, the bias, the
sampler. Then its rate is chosen once more in trainings of four times as many steps. The best setting has the largest
product of both scores. It is trained with another seed and looked at on the test examples.

On Diginetica and citeulike-t the best setting is checked. A few others show what a search would still have gained.
Last, the Z-loss and the sampled softmax are compared on tags. Validation examples decide, and test examples never do.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import log, sqrt
from pathlib import Path
from typing import Any

from benchmarks.head_corpora import CorpusName
from benchmarks.head_trials import TESTED, HeadTrial, Setting, TimeUp, Trials
from zloss.heads.defaults import OptimizerName

RECORDS = Path(__file__).parent / "records" / "head_defaults.cpu.jsonl"
CHOOSING: Sequence[CorpusName] = ("ptb", "yoochoose")
CHECKING: Sequence[CorpusName] = ("citeulike", "diginetica")
CHECK_TIMES: Mapping[CorpusName, int] = {"citeulike": 1, "diginetica": 2}
SAMPLES = (256, 512, 1024, 8192)  # the numbers S that are compared
_ADAPTIVE_RATES: Mapping[OptimizerName, Sequence[float]] = {
    "adagrad": (0.1, 0.5),
    "adam": (3e-3, 1e-2, 3e-2),
}
# Good rates of plain SGD are larger where an example changes few rows, or where the loss is scale-invariant.
_SGD_RATES: Mapping[str, Sequence[float]] = {
    "sampled": (30.0, 300.0),
    "factored": (5.0, 15.0, 50.0, 150.0, 500.0, 1500.0, 5000.0),
    "hierarchical": (1.0, 10.0),
    "dense": (1.0, 10.0),
    "adaptive": (1.0, 10.0),
    "gram": (50.0, 500.0),
}
# The heads with all stages of the search, whose rate is then chosen once more in longer trainings. With more stages for
# the other heads, the search goes on where it was.
LONGER = ("sampled",)
_ALL_STAGES, _FEW_STAGES = 5, 1
_TIMES = 4
TAGGED = ("factored", "sampled")  # the heads that are compared on tags
_LONG = 8  # the same factor for a longer look at Diginetica, where an item is rare
_SLOW_TRUNK, _FAST_TRUNK = 3e-3, 1e-2


def _first(head: str, loss: str = "softmax", **options: Any) -> Setting:
    """Return a setting whose optimizer and rate the first stage of a search replaces."""
    return Setting(head=head, loss=loss, optimizer="sgd", lr=1.0, options=options)


# Each head with its first setting, and the option that the last stage of a search changes.
HEADS: Mapping[str, tuple[Setting, Mapping[str, Any]]] = {
    "sampled": (_first("sampled", num_samples=512), {"sampler": "unigram"}),
    "factored": (_first("factored", "z_loss"), {"a_factor": 2.0}),
    "nce": (_first("sampled", "nce", num_samples=512, bias=True), {"sampler": "unigram"}),
    "hierarchical": (_first("hierarchical"), {"clusters": 200}),
    "dense": (_first("dense"), {}),
    "adaptive": (_first("adaptive"), {"div_value": 2.0}),
    "gram": (_first("gram", "z_loss"), {"a_factor": 2.0}),
}
# The settings that the sampled softmax had before: as many samples as an eighth of the classes of citeulike-t.
FORMER = Setting(
    head="sampled", loss="softmax", optimizer="adagrad", lr=0.1, options={"num_samples": 6618}
)
_BIAS = {"adaptive": "head_bias"}  # the name of the option, where it is not "bias"

Score = Callable[[Setting], float]


def search(name: str, score: Score, *, stages: int) -> Setting:
    """Return the best setting of a head after some stages. A stage has the same number of trials for every head."""
    best = max(first_settings(HEADS[name][0]), key=score)
    all_stages: list[Callable[[Setting], Iterable[Setting]]] = [
        lambda best: [next_rate(best, score)],
        trunk_rates,
        scales,
        biases,
        lambda best: [last_change(name, best)],
    ]
    for stage in all_stages[:stages]:
        best = max([best, *stage(best)], key=score)
    return best


def search_longer(best: Setting, score: Score) -> Setting:
    """Return the best of other rates and Adam around a setting, and then of other rates, the bias and a slow trunk."""
    best = max([best, *other_rates(best)], key=score)
    best = max([best, _scaled(best, 1 / 3), _scaled(best, 3.0)], key=score)
    return max([best, *biases(best), replace(best, trunk_lr=3e-3)], key=score)


def first_settings(first: Setting) -> list[Setting]:
    """Return all optimizers at all of their rates."""
    return [
        replace(first, optimizer=optimizer, lr=lr)
        for optimizer, rates in _rates(first.head).items()
        for lr in rates
    ]


def _rates(head: str) -> Mapping[OptimizerName, Sequence[float]]:
    return {"sgd": _SGD_RATES[head], **({} if head == "factored" else _ADAPTIVE_RATES)}


def next_rate(best: Setting, score: Score) -> Setting:
    """Return the setting at a rate beyond an end of the rates, or between the best rate and its better neighbour."""
    rates = _rates(best.head)[best.optimizer]
    place = rates.index(best.lr)
    if place in (0, len(rates) - 1):
        neighbour = rates[1] if place == 0 else rates[-2]
        return replace(best, lr=float(f"{best.lr**2 / neighbour:.3g}"))
    around = [replace(best, lr=rates[place + side]) for side in (-1, 1)]
    return replace(best, lr=float(f"{sqrt(best.lr * max(around, key=score).lr):.3g}"))


def trunk_rates(best: Setting) -> list[Setting]:
    """Return the setting at other rates of the layers below the head."""
    return [replace(best, trunk_lr=lr) for lr in (1e-2, 1e-3)]


def scales(best: Setting) -> list[Setting]:
    """Return the setting with smaller initial weights of the head."""
    return [replace(best, scale=0.1)]


def biases(best: Setting) -> list[Setting]:
    """Return the setting with a bias, or without if it has one."""
    name = _BIAS.get(best.head, "bias")
    return [replace(best, options={**best.options, name: not best.options.get(name, False)})]


def last_change(name: str, best: Setting) -> Setting:
    """Return the setting with another value of an option of the head, or at a higher rate if it has no option."""
    own = HEADS[name][1]
    return replace(best, options={**best.options, **own}) if own else _scaled(best, sqrt(3))


def _scaled(best: Setting, factor: float) -> Setting:
    return replace(best, lr=float(f"{best.lr * factor:.3g}"))


def joint_score(trials: Trials, *, times: int = 1) -> Score:
    """Return the function of a setting that is the logarithm of the product of its scores on both corpora."""
    return lambda setting: sum(
        log(trials.trial(corpus, setting, times=times).score) for corpus in CHOOSING
    )


def other_rates(best: Setting) -> list[Setting]:
    """Return the best setting at other rates, and with another optimizer."""
    settings = [_scaled(best, 1 / 3), _scaled(best, 3.0)]
    if best.optimizer != "adam" and best.head != "factored":
        settings.append(replace(best, optimizer="adam", lr=0.01))
    if best.optimizer == "adam" and best.head == "sampled":
        settings.append(_plain(best))
    return settings


def _plain(best: Setting) -> Setting:
    """Return the setting of the sampled softmax by SGD, at a rate that was level with Adam in longer trainings."""
    return replace(best, optimizer="sgd", lr=100.0)


def with_samples(best: Setting, number: int) -> list[Setting]:
    """Return the settings with S samples, at several rates: with more samples, a row moves in more steps."""
    one = replace(best, options={**best.options, "num_samples": number})
    return [one, _scaled(one, 1 / 3), _plain(one)]


def choose(name: str, trials: Trials) -> Setting:
    """Return the best setting of a head on the two corpora that choose."""
    if name not in LONGER:
        return search(name, joint_score(trials), stages=_FEW_STAGES)
    best = search(name, joint_score(trials), stages=_ALL_STAGES)
    return search_longer(best, joint_score(trials, times=_TIMES))


def run_choice(name: str, trials: Trials) -> None:
    """Look at the default of a head on the test examples of the corpora that chose it."""
    best = choose(name, trials)
    settings = [best]
    if name in LONGER:
        settings += [setting for number in SAMPLES for setting in with_samples(best, number)]
    for corpus in CHOOSING:
        for setting in settings:
            trials.trial(corpus, setting, seed=TESTED, tests=True)


def check_choice(name: str, trials: Trials) -> None:
    """Look at the default of a head, and at other settings, on the corpora that did not choose it."""
    best = choose(name, trials)
    for corpus in CHECKING:
        for setting in checked(best, corpus):
            trials.trial(corpus, setting, times=CHECK_TIMES[corpus], seed=TESTED, tests=True)
    if name == "sampled":
        trials.trial("citeulike", FORMER, seed=TESTED, tests=True)
        for setting in (best, _plain(best)):
            slow = replace(setting, trunk_lr=_SLOW_TRUNK)
            trials.trial("diginetica", slow, times=_LONG, seed=TESTED, tests=True)


def checked(best: Setting, corpus: CorpusName) -> list[Setting]:
    """Return the default and settings beside it. At the fast rate of the trunk, networks for Diginetica die."""
    if corpus == "diginetica":
        best = replace(best, trunk_lr=_SLOW_TRUNK)
    return [best, *other_rates(best)]


def on_tags(name: str, trials: Trials) -> HeadTrial:
    """Return a training of 9 epochs on citeulike-t, with the setting that is best after 3 of them."""
    best = choose(name, trials)
    settings = [
        replace(setting, trunk_lr=lr)
        for setting in (best, *other_rates(best))
        for lr in (_SLOW_TRUNK, _FAST_TRUNK)
    ]
    best = max(
        settings,
        key=lambda one: trials.trial("citeulike", one, seed=TESTED, tests=True).score,
    )
    return trials.trial("citeulike", best, times=3, seed=TESTED, tests=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of the corpora")
    parser.add_argument("--minutes", type=float, default=50.0, help="no trial begins after these")
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=list(HEADS))
    parser.add_argument("--output", type=Path, default=RECORDS)
    arguments = parser.parse_args()
    trials = Trials(arguments.output, arguments.data, time.monotonic() + 60 * arguments.minutes)
    try:
        for name in arguments.heads:
            run_choice(name, trials)
        for name in arguments.heads:
            check_choice(name, trials)
        for name in TAGGED:
            on_tags(name, trials)
    except TimeUp:
        print("the time is up: start again to go on")


if __name__ == "__main__":
    main()
