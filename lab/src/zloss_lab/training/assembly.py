"""The parts of an experiment, made from its config: device, corpus, batches, network and optimizers."""

import torch
from torch.optim import Optimizer

from zloss_lab.checkpoints import RunCheckpoint
from zloss_lab.corpora import Corpus, MissingCorpusError
from zloss_lab.networks import NgramNetwork
from zloss_lab.ngrams import NgramBatches
from zloss_lab.runs import CONFIG, Run, RunError
from zloss_lab.training.experiment import Experiment
from zloss_lab.training.state import with_prefix

_EVALUATION_SEED = 0  # so that runs with different seeds are evaluated on the same sample


def device_of(name: str) -> torch.device:
    """Return a device by its name. The name "auto" stands for a GPU if the machine has one, else for the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise RunError(f"there is no device {name!r} to train on: use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RunError(
            f"device {name!r} is not here: torch finds no GPU on this machine; use auto or cpu"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RunError(
            f"device {name!r} is not here: torch finds {torch.cuda.device_count()} GPUs, counted from cuda:0"
        )
    return device


def open_corpus(config: Experiment, run: Run) -> Corpus:
    """Open the corpus of an experiment. If it has moved, the error says where a run names its corpus."""
    try:
        return Corpus.open(config.corpus)
    except MissingCorpusError as error:
        noted = run.folder / CONFIG
        if not noted.exists() or not run.steps():
            raise
        raise MissingCorpusError(
            f"{error}, or change `corpus` in {noted} where it has moved"
        ) from error


def batches_of(
    corpus: Corpus, split: str, config: Experiment, device: torch.device, *, shuffle: bool = True
) -> NgramBatches:
    """Return the n-grams of a split with the settings of an experiment.

    `Corpus.open` has checked that every token has a word. On a GPU another one would break the device.
    """
    return NgramBatches(
        corpus.split(split),
        context=config.network.context,
        batch_size=config.training.batch_size if shuffle else 1024,
        boundary=corpus.boundary,
        padding=corpus.padding,
        mode=config.training.mode,
        device=device,
        seed=config.training.seed if shuffle else _EVALUATION_SEED,
        shuffle=shuffle,
    )


def build_network(config: Experiment, corpus: Corpus, device: torch.device) -> NgramNetwork:
    """Return the network of an experiment, with new weights."""
    counts = torch.tensor(corpus.vocabulary.counts)
    return NgramNetwork(config.network, len(corpus.vocabulary), counts=counts, device=device)


def build_optimizers(config: Experiment, network: NgramNetwork) -> list[Optimizer]:
    """Return the optimizers of an experiment for its network."""
    training = config.training
    return network.optimizers(
        training.optimizer,
        lr=training.lr,
        output=training.output_optimizer,
        output_lr=training.output_lr,
        weight_decay=training.weight_decay,
        output_weight_decay=training.output_weight_decay,
        forms_gradients=training.clip is not None,
    )


def load_network(network: NgramNetwork, checkpoint: RunCheckpoint, corpus: Corpus) -> None:
    """Load the weights of a checkpoint into a network. A checkpoint for other words than the corpus is refused."""
    classes, vocabulary = checkpoint.state.classes, checkpoint.state.vocabulary
    if classes != network.head.num_classes or vocabulary != corpus.vocabulary_sha256:
        raise RunError(
            f"the checkpoint has {classes} classes, the vocabulary {network.head.num_classes}, or other words: "
            f"{corpus.folder} is not the corpus that the run was trained on"
        )
    try:
        network.load_state_dict(with_prefix(checkpoint.tensors, "network."))
    except RuntimeError as error:
        fault = str(error).splitlines()[-1].strip()
        raise RunError(
            f"the config is not the one these weights were trained with: {fault}"
        ) from error
