"""The `Trainer` of transformers with `optimizers=(zloss.Optimizer(...), scheduler)`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.integrations.twins import (
    BATCH,
    MAX_NORM,
    Classifier,
    Examples,
    assert_equal,
    assert_moved,
    assert_twins,
    schedule,
)

transformers: Any = pytest.importorskip(
    "transformers", reason="transformers is not installed: `make integrations`"
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers about itself


class WithLoss(nn.Module):
    """A model as the `Trainer` takes it: its result has the loss."""

    def __init__(self, *, is_dense: bool) -> None:
        super().__init__()
        self.model = Classifier(is_dense=is_dense)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.model(x, labels)}


def trainer(wrapped: WithLoss, folder: Path, **options: Any) -> Any:
    usual = {
        "output_dir": str(folder),
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 2,
        "max_grad_norm": MAX_NORM,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 7,
    }
    optimizer = wrapped.model.optimizer()
    return transformers.Trainer(
        model=wrapped,
        args=transformers.TrainingArguments(**usual | options),
        train_dataset=Examples(),
        optimizers=(optimizer, schedule(optimizer)),
    )


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 3}], ids=str)
def test_a_training_is_that_of_the_dense_twin(options: dict[str, Any], tmp_path: Path) -> None:
    models = [WithLoss(is_dense=is_dense) for is_dense in (False, True)]
    for wrapped in models:
        trainer(wrapped, tmp_path, **options).train()
    assert_twins(*(wrapped.model.weights() for wrapped in models))
    assert_moved(models[0].model.weights())


def test_a_resumed_training_is_the_same(tmp_path: Path) -> None:
    whole, first, second = (WithLoss(is_dense=False) for _ in range(3))
    trainer(whole, tmp_path / "whole").train()
    folder = tmp_path / "stopped"
    saving = {"save_strategy": "steps", "save_steps": 8}
    trainer(first, folder, **saving).train()
    assert_equal(first.model.weights(), whole.model.weights())
    trainer(second, folder).train(resume_from_checkpoint=str(folder / "checkpoint-8"))
    assert_equal(second.model.weights(), whole.model.weights())


def test_a_forgotten_output_layer_is_refused_at_the_first_step(tmp_path: Path) -> None:
    """Without `optimizers`, the `Trainer` makes an AdamW of all parameters."""
    wrapped = WithLoss(is_dense=False)
    before = wrapped.model.weights()
    forgetful = trainer(wrapped, tmp_path)
    forgetful.optimizer = torch.optim.AdamW(wrapped.parameters())
    forgetful.lr_scheduler = None
    with pytest.raises(ValueError, match=r"AdamW holds .* FactoredLinear"):
        forgetful.train()
    assert_equal(wrapped.model.weights(), before)
