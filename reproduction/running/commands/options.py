"""The options that several commands share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from reproduction.running.collecting import Collector
from reproduction.running.commands.making import make_records, show
from reproduction.running.sources import SettingsPlaces, SettingsSource
from reproduction.scores import PAPER_SCORES
from zloss_lab.command_options import Settings
from zloss_lab.experiments import DEFAULT_PRESET, build_table, parse_settings

STUDIES, RECORDS = Path("studies/ptb"), Path("reproduction/records")

Studies = Annotated[
    Path,
    typer.Option(
        help="folder with a study for each loss, as `python -m reproduction run search` makes them"
    ),
]
Records = Annotated[Path, typer.Option(help="folder for the records")]
DeviceName = Annotated[
    str | None, typer.Option("--device", help="auto, cpu or cuda", show_default="auto")
]
Losses = Annotated[str | None, typer.Option(help="separated by commas", show_default="all")]
Scores = Annotated[
    str | None,
    typer.Option(help=f"of {', '.join(PAPER_SCORES)}; separated by commas", show_default="all"),
]


@dataclass(frozen=True, kw_only=True)
class FigureOptions:
    """The options of all figures: the source of the settings, and the trainings to make with them."""

    studies: Studies = STUDIES
    settings_of: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="folder of records to take the settings from, even if there are studies",
            show_default="none: from the studies, or without any from --records",
        ),
    ] = None
    corpus: Annotated[
        Path | None,
        typer.Option(help="folder of a prepared corpus", show_default="the corpus of the studies"),
    ] = None
    seeds: Annotated[
        int, typer.Option(min=1, help="number of trainings of every choice, from seed 0 on")
    ] = 3
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1, help="number of epochs of a training", show_default="the epochs of the studies"
        ),
    ] = None
    at_once: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="number of networks side by side",
            show_default="as many as there is memory for",
        ),
    ] = None
    device: DeviceName = None
    settings: Settings = None
    records: Records = RECORDS

    def find_settings(
        self, figure: int, losses: Sequence[str], scores: Sequence[str]
    ) -> list[SettingsSource]:
        """Return a source of settings for each loss."""
        places = SettingsPlaces(
            studies=self.studies,
            records=self.records,
            settings_of=self.settings_of,
            corpus=self.corpus,
            changes=changed_settings(self.settings, self.epochs, self.device),
        )
        return places.find(figure, losses, scores, show)

    def make(self, collect: Callable[[Collector], list[str]]) -> None:
        """Make the records of a figure."""
        make_records(collect, self.records, range(self.seeds), self.at_once)


def changed_settings(
    settings: Sequence[str] | None, epochs: int | None, device: str | None
) -> dict[str, Any]:
    """Return the settings of the user by dotted keys. Keys that an experiment does not have are refused."""
    named = {"training.epochs": epochs, "device": device}
    given = {key: value for key, value in named.items() if value is not None}
    changes = given | parse_settings(settings or [])
    build_table(DEFAULT_PRESET, [], changes)
    return changes
