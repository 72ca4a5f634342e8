"""Measure where the mean rank of language models comes from, and whether weights of classes mend it.

    zloss data prepare ptb --to data/ptb
    python -m benchmarks.mean_rank data/ptb       writes records/mean_rank.cpu.jsonl

There are a guess by frequency, a trigram model, a sampled softmax, and the Z-loss with several weights of the targets.
A word with f occurrences has the weight f^-beta, with a mean of 1 over the training text. All networks have the same
layers, the same optimizer below the head, and as many epochs. Rates fall to zero in a line.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from benchmarks.baseline_records import Band, MeanRankRecord
from zloss import HeadConfig
from zloss_lab.corpora import Corpus
from zloss_lab.kneser_ney import KneserNey
from zloss_lab.networks import NetworkConfig, NgramNetwork
from zloss_lab.ngrams import NgramBatches, Ngrams
from zloss_lab.records import provenance, write_records

RECORDS = Path(__file__).parent / "records"
CONTEXT = 5
KS = (1, 10, 100)
BANDS = ((1, 100), (101, 1000), (1001, 3000), (3001, 10_000))
BETAS = (0.0, 0.25, 0.5, 0.75)
Network = Literal["z_loss", "sampled"]
HEADS: dict[Network, dict[str, Any]] = {
    "z_loss": {"head": "factored"},
    "sampled": {"head": "sampled", "num_samples": 512, "sampler": "unigram"},
}


def class_weights(counts: Tensor, beta: float) -> Tensor:  # (C,) -> (C,)
    """Return weights of the targets, f^-beta, with a mean of 1 over all occurrences.

    >>> class_weights(torch.tensor([4, 1, 0]), 0.5)
    tensor([0.8333, 1.6667, 1.6667])
    """
    weights = counts.clamp_min(1).double() ** -beta
    return (weights * counts.sum() / (counts * weights).sum()).float()


def trained(corpus: Corpus, model: Network, beta: float, epochs: int, seed: int) -> NgramNetwork:
    """Return a network after its training."""
    torch.manual_seed(seed)
    counts = torch.tensor(corpus.vocabulary.counts)
    config = NetworkConfig(
        context=CONTEXT, embedding=64, hidden=(256, 128), head=HeadConfig.from_dict(HEADS[model])
    )
    network = NgramNetwork(config, len(counts), counts=counts)
    batches = NgramBatches(corpus.split("train"), context=CONTEXT, batch_size=250, seed=seed)
    optimizers = network.optimizers("adam", lr=1e-3, output_lr=20.0)
    if model == "sampled":
        optimizers[-1] = torch.optim.SparseAdam(list(network.head.parameters()), lr=1e-3)
    schedules = [
        torch.optim.lr_scheduler.LinearLR(one, 1.0, 0.0, total_iters=epochs * len(batches))
        for one in optimizers
    ]
    weights = class_weights(counts, beta)
    for epoch in range(epochs):
        batches.start(epoch)
        for context, target in track(batches, f"{model} {beta}, epoch {epoch}", len(batches)):
            loss = network.head(network.hidden(context), target, weight=weights[target])
            loss.backward()
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
    return network


def ranks_of(network: NgramNetwork, batches: NgramBatches) -> Tensor:
    """Return the ranks of all targets."""
    network.eval()
    with torch.inference_mode():
        ranks = [network.head.rank(network.hidden(context), target) for context, target in batches]
    return torch.cat(ranks)


def described(ranks: Tensor, targets: Tensor) -> dict[str, Any]:
    """Return the fields of a record that ranks and targets give. Words are numbered by their frequency.

    >>> described(torch.tensor([3, 1]), torch.tensor([0, 200]))["bands"][1].mean_rank
    1.0
    """
    bands = []
    for first, last in BANDS:
        own = ranks[(targets >= first - 1) & (targets < last)].double()
        if len(own):
            share, median = len(own) / len(ranks), own.median().item()
            bands.append(
                Band(
                    first=first,
                    last=last,
                    share=share,
                    mean_rank=own.mean().item(),
                    median_rank=median,
                )
            )
    return {
        "examples": len(ranks),
        "top_errors": {str(k): (ranks > k).double().mean().item() for k in KS},
        "mean_rank": ranks.double().mean().item(),
        "median_rank": float(ranks.median()),
        "bands": tuple(bands),
    }


def measured(corpus: Corpus, epochs: int, seed: int) -> Iterator[MeanRankRecord]:
    """Yield the records of all models."""
    common: dict[str, Any] = {
        "corpus": corpus.name,
        "classes": len(corpus.vocabulary),
        "seed": seed,
        **provenance(torch.device("cpu")),
    }
    batches = NgramBatches(corpus.split("test"), context=CONTEXT, batch_size=1024, shuffle=False)
    _, targets = batches.ngrams.read(torch.arange(len(batches.ngrams)))
    counts = np.array(corpus.vocabulary.counts)
    frequent = len(counts) - np.searchsorted(np.sort(counts), counts, side="right") + 1
    found = described(torch.from_numpy(frequent)[targets], targets)
    yield MeanRankRecord(model="most-frequent", **found, **common)
    trigrams = KneserNey.count(Ngrams(corpus.split("train"), context=2), len(counts))
    judged = [trigrams.judge((context[:, -2:], target))[0] for context, target in batches]
    yield MeanRankRecord(model="trigram", **described(torch.cat(judged), targets), **common)
    trainings: list[tuple[Network, float]] = [("sampled", 0.0)]
    trainings += [("z_loss", beta) for beta in BETAS]
    for model, beta in trainings:
        network = trained(corpus, model, beta, epochs, seed)
        found = described(ranks_of(network, batches), targets)
        yield MeanRankRecord(model=model, beta=beta, epochs=epochs, **found, **common)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpus", type=Path, help="folder of a prepared corpus")
    parser.add_argument(
        "--epochs", type=int, default=2, help="epochs of each network (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RECORDS / "mean_rank.cpu.jsonl")
    arguments = parser.parse_args()
    records = []
    for record in measured(Corpus.open(arguments.corpus), arguments.epochs, arguments.seed):
        records.append(record)
        write_records(arguments.output, records)
        errors = ", ".join(f"top-{k} {100 * one:.1f} %" for k, one in record.top_errors.items())
        print(f"{record.model} {record.beta}: {errors}, mean rank {record.mean_rank:.0f}")


if __name__ == "__main__":
    main()
