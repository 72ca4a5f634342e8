"""A trained network with its vocabulary, for evaluation and prediction."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from zloss_lab.corpora import Corpus
from zloss_lab.evaluation import (
    CountWatcher,
    Evaluation,
    constant_classifier,
    evaluate,
    evaluation_mode,
)
from zloss_lab.networks import NgramNetwork
from zloss_lab.ngrams import NgramBatches, Ngrams
from zloss_lab.runs import Run
from zloss_lab.training import (
    Experiment,
    batches_of,
    build_network,
    device_of,
    load_network,
    open_corpus,
    resumed,
)


@dataclass(frozen=True)
class TrainedModel:
    """The best network of a run."""

    network: NgramNetwork
    experiment: Experiment
    corpus: Corpus

    @classmethod
    def load(cls, folder: Path) -> "TrainedModel":
        """Load the best checkpoint from the folder of a run, or the last one if no checkpoint was validated.

        If the user has removed the best checkpoint, because it was damaged, a warning says so, and the last is loaded.
        """
        run, experiment = Run.open(folder), resumed(folder)
        corpus, device = open_corpus(experiment, run), device_of(experiment.device)
        network = build_network(experiment, corpus, device)
        load_network(network, run.load(_best_present(run), device=str(device)), corpus)
        return cls(network, experiment, corpus)

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return device_of(self.experiment.device)

    def evaluate(
        self, split: str, *, limit: int | None = None, progress: CountWatcher | None = None
    ) -> Evaluation:
        """Return the scores of the network on a split."""
        return evaluate(self.network, self._batches(split), limit=limit, progress=progress)

    def compare(
        self, split: str, *, limit: int | None = None, progress: CountWatcher | None = None
    ) -> dict[str, Evaluation]:
        """Return the scores of the network on a split, and the scores of always predicting the most frequent words."""
        counts = self.corpus.vocabulary.counts
        return {
            "this run": self.evaluate(split, limit=limit, progress=progress),
            "most frequent words": constant_classifier(counts, self._batches(split), limit=limit),
        }

    def _batches(self, split: str) -> NgramBatches:
        return batches_of(self.corpus, split, self.experiment, self.device, shuffle=False)

    def predict(self, text: str, top: int) -> list[tuple[str, float]]:
        """Return the `top` most likely next words with their scores, best first; at most all words."""
        with evaluation_mode(self.network):
            scores, classes = self.network.head.topk(
                self.network.hidden(self._context(text)), min(top, len(self.corpus.vocabulary))
            )
        words = [self.corpus.vocabulary.words[number] for number in classes[0].tolist()]
        return list(zip(words, scores[0].tolist(), strict=True))

    def _context(self, text: str) -> Tensor:  # (1, n)
        """Return the context of the next word of a text, as in training. Padding fills it up at the beginning."""
        size = self.experiment.network.context
        padding = 0 if self.corpus.padding is None else self.corpus.padding
        to_come = padding  # any word would do: the target is not used
        ngrams = Ngrams(
            torch.tensor([*[padding] * size, *self.corpus.encode(text), to_come]),
            context=size,
            mode=self.experiment.training.mode,
            boundary=self.corpus.boundary,
            padding=self.corpus.padding,
            device=self.device,
        )
        context, _ = ngrams.read(torch.tensor([len(ngrams) - 1], device=self.device))
        return context


def _best_present(run: Run) -> int | None:
    """Return the step of the best checkpoint, or None with a warning if it is gone."""
    best, steps = run.best_step, run.steps()
    if best is None or best in steps:
        return best
    warnings.warn(
        f"the best checkpoint of {run.folder}, of step {best}, is gone: the last one is used, of step {steps[-1]}",
        stacklevel=3,
    )
    return None
