"""Lightning, with one optimizer and automatic optimisation: clipping, schedules, checkpoints, mistakes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.integrations.twins import (
    MAX_NORM,
    Classifier,
    assert_equal,
    assert_moved,
    assert_twins,
    loader,
    schedule,
)

L: Any = pytest.importorskip("lightning", reason="Lightning is not installed: `make integrations`")

# Of Lightning about this machine and about itself.
pytestmark = pytest.mark.filterwarnings("ignore")


class Module(L.LightningModule):  # type: ignore[misc]
    """The usual module of Lightning: nothing in it knows about the output layer."""

    def __init__(self, *, is_dense: bool) -> None:
        super().__init__()
        self.model = Classifier(is_dense=is_dense)
        self.seen: list[list[Tensor]] = []

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = self.model(**batch)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = self.model.optimizer()
        scheduler = {"scheduler": schedule(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen.append(self.model.weights())


def trainer(folder: Path, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        **{"max_epochs": 2, "enable_checkpointing": False} | quiet | options,
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_clip_val": MAX_NORM},
        {"gradient_clip_val": MAX_NORM, "accumulate_grad_batches": 3},
    ],
    ids=["plain", "clipped", "clipped and accumulated"],
)
def test_every_step_is_that_of_the_dense_twin(options: dict[str, Any], tmp_path: Path) -> None:
    modules = [Module(is_dense=is_dense) for is_dense in (False, True)]
    for module in modules:
        trainer(tmp_path, **options).fit(module, loader())
    factored, dense = (module.seen for module in modules)
    assert len(factored) == len(dense) == 16
    for own, expected in zip(factored, dense, strict=True):
        assert_twins(own, expected)
    assert_moved(factored[-1])


def test_a_resumed_training_is_the_same(tmp_path: Path) -> None:
    whole, first, second = (Module(is_dense=False) for _ in range(3))
    options = {"gradient_clip_val": MAX_NORM}
    trainer(tmp_path, **options).fit(whole, loader())
    stopped = trainer(tmp_path, max_epochs=1, **options)
    stopped.fit(first, loader())
    stopped.save_checkpoint(tmp_path / "half.ckpt")
    trainer(tmp_path, **options).fit(second, loader(), ckpt_path=tmp_path / "half.ckpt")
    assert_equal(second.model.weights(), whole.model.weights())


def test_clipping_by_value_is_refused(tmp_path: Path) -> None:
    options = {"gradient_clip_val": 1e-4, "gradient_clip_algorithm": "value"}
    with pytest.raises(ValueError, match="gradient_clip_algorithm='norm'"):
        trainer(tmp_path, **options).fit(Module(is_dense=False), loader())


def test_a_forgotten_output_layer_is_refused_in_the_first_step(tmp_path: Path) -> None:
    class Forgetful(Module):
        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    module = Forgetful(is_dense=False)
    with pytest.raises(ValueError, match=r"Adam holds .* FactoredLinear.* zloss.Optimizer\(model"):
        trainer(tmp_path).fit(module, loader())
    assert not module.seen
