"""Options of the commands `zloss bench`, and the values that their texts stand for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import torch
import typer

from zloss.names import check_name
from zloss_lab.bench.entries import ENTRIES, HeadEntry
from zloss_lab.bench.race import Conditions
from zloss_lab.bench.random_inputs import Law
from zloss_lab.bench.steps import Launch
from zloss_lab.networks import TrunkPrecision
from zloss_lab.terminal import listed_names
from zloss_lab.training import device_of

Heads = Annotated[
    str, typer.Option(help=f"heads separated by commas, or all: {', '.join(ENTRIES)}")
]
Batches = Annotated[str, typer.Option(help="numbers of examples, separated by commas")]
ClassCounts = Annotated[str, typer.Option(help="numbers of classes, separated by commas")]
HiddenSizes = Annotated[str, typer.Option(help="numbers of hidden units, separated by commas")]
ClassCount = Annotated[int, typer.Option(min=2, help="number of classes")]
HiddenSize = Annotated[int, typer.Option(min=1, help="number of hidden units")]


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """The device of a benchmark, and the file of its records."""

    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto"
    output: Annotated[
        Path | None,
        typer.Option(
            help="file for the records, which is overwritten",
            show_default="bench.SUITE.DEVICE.jsonl",
        ),
    ] = None

    @property
    def torch_device(self) -> torch.device:
        """The device as torch has it."""
        check_name("device", self.device, ("auto", "cpu", "cuda"))
        return device_of(self.device)


@dataclass(frozen=True, kw_only=True)
class RaceOptions(PlaceOptions):
    """The conditions that all cases of a race share."""

    repeats: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="number of turns of each case",
            show_default="7 or 20 on a GPU, 7 or 30 on a CPU",
        ),
    ] = None
    memory: Annotated[
        bool, typer.Option(help="on a CPU, measure memory too, each case in its own process")
    ] = True

    @property
    def conditions(self) -> Conditions:
        """The conditions of the race."""
        return Conditions(
            device=self.torch_device, repeats=self.repeats, measures_memory=self.memory
        )


@dataclass(frozen=True, kw_only=True)
class StepOptions(RaceOptions):
    """The conditions of a race of training steps."""

    launch: Annotated[
        str | None,
        typer.Option(
            help="eager, or graph for CUDA graphs", show_default="both, if the device has them"
        ),
    ] = None

    @property
    def only_launch(self) -> Launch | None:
        """The only way to launch steps, or None for all ways."""
        if self.launch is not None:
            check_name("launch", self.launch, get_args(Launch))
        if self.launch == "graph" and self.torch_device.type != "cuda":
            raise ValueError("--launch graph needs a GPU: CUDA graphs run there only")
        return self.launch  # type: ignore[return-value]


def head_entries(heads: str) -> list[HeadEntry]:
    """Return the entries of heads that are separated by commas."""
    return [ENTRIES[key] for key in listed_names("head", heads, ENTRIES)]


def target_law(text: str | None) -> Law | None:
    """Return the law of targets, or None if none is given."""
    if text is not None:
        check_name("law of targets", text, get_args(Law))
    return text  # type: ignore[return-value]


def trunk_precision(text: str | None, device: torch.device) -> TrunkPrecision:
    """Return the precision of hidden layers: by default, TF32 on a GPU and float32 on a CPU."""
    text = text or ("tf32" if device.type == "cuda" else "float32")
    check_name("precision", text, get_args(TrunkPrecision))
    return text  # type: ignore[return-value]
