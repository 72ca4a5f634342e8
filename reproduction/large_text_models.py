"""The models of table 2, as large_text_models.toml describes them: a network of the paper with an output layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from zloss_lab.configuration import dotted
from zloss_lab.toml_tables import named_table

CONSTANT = "constant"  # the key of the model that always predicts the most frequent words


@dataclass(frozen=True, kw_only=True)
class LargeTextModel:
    """A model of table 2."""

    key: str  # in records and commands
    title: str  # in tables and figures
    preset: str | None  # of the network; None where nothing is trained
    settings: Mapping[str, Any]  # the table over the preset

    @property
    def is_z_loss(self) -> bool:
        """True if it is trained with the Z-loss."""
        return dict(dotted(self.settings)).get("network.head.loss") == "z_loss"


def _read() -> tuple[Mapping[str, Any], Mapping[str, LargeTextModel]]:
    """Return the settings of all models, and the models by key."""
    tables = named_table(resources.files("reproduction"), "large_text_models")
    common = tables.pop("every")
    models = {
        key: LargeTextModel(
            key=key, title=table.pop("title"), preset=table.pop("preset", None), settings=table
        )
        for key, table in tables.items()
    }
    return common, models


COMMON_SETTINGS, MODELS = _read()
SOFTMAXES = tuple(
    key for key, model in MODELS.items() if model.preset is not None and not model.is_z_loss
)


def model_title(key: str) -> str:
    """Return the title of a model.

    >>> model_title("hierarchical_softmax_net1")
    'H-softmax net1'
    """
    return MODELS[key].title
