"""A trained network with its vocabulary, ready to be used."""

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
from zloss_lab.ngrams import Ngrams
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
        """From its folder: the best checkpoint, or the last where none was validated."""
        run, experiment = Run.open(folder), resumed(folder)
        corpus, device = open_corpus(experiment, run), device_of(experiment.device)
        network = build_network(experiment, corpus, device)
        load_network(network, run.load(run.best_step, device=str(device)), corpus)
        return cls(network, experiment, corpus)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return device_of(self.experiment.device)

    def evaluate(
        self, split: str, *, limit: int | None = None, progress: CountWatcher | None = None
    ) -> dict[str, Evaluation]:
        """Its scores on a split, and those of always predicting the most frequent words."""
        batches = batches_of(self.corpus, split, self.experiment, self.device, shuffle=False)
        return {
            "this run": evaluate(self.network, batches, limit=limit, progress=progress),
            "most frequent words": constant_classifier(
                self.corpus.vocabulary.counts, batches, limit=limit
            ),
        }

    def predict(self, text: str, top: int) -> list[tuple[str, float]]:
        """The words that may well come next, best first, with their scores; all words where there are fewer."""
        with evaluation_mode(self.network):
            scores, classes = self.network.head.topk(
                self.network.hidden(self._context(text)), min(top, len(self.corpus.vocabulary))
            )
        words = [self.corpus.vocabulary.words[number] for number in classes[0].tolist()]
        return list(zip(words, scores[0].tolist(), strict=True))

    def _context(self, text: str) -> Tensor:  # (1, n)
        """What comes before the next word of a text, cut out as in training; padding stands before its beginning."""
        size = self.experiment.network.context
        padding = 0 if self.corpus.padding is None else self.corpus.padding
        to_come = padding  # any word: it is not looked at
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
