"""Accelerate: `prepare`, accumulation, `clip_grad_norm_`, saved states, and mistakes."""

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

accelerate: Any = pytest.importorskip(
    "accelerate", reason="accelerate is not installed: `make integrations`"
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of accelerate about this machine


class Run:
    """A model in a training loop of Accelerate."""

    def __init__(self, *, is_dense: bool, accumulate: int = 1) -> None:
        self.accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        self.classifier = Classifier(is_dense=is_dense)
        optimizer = self.classifier.optimizer()
        prepared = self.accelerator.prepare(
            self.classifier, optimizer, loader(), schedule(optimizer)
        )
        self.model, self.optimizer, self.loader, self.scheduler = prepared
        self.seen: list[list[Tensor]] = []
        self.norms: list[Tensor] = []

    def epoch(self) -> None:
        for batch in self.loader:
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(**batch))
                if self.accelerator.sync_gradients:
                    norm = self.accelerator.clip_grad_norm_(self.model.parameters(), MAX_NORM)
                    self.norms.append(norm)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
            self.seen.append(self.classifier.weights())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_step_is_that_of_the_dense_twin(accumulate: int) -> None:
    runs = [Run(is_dense=is_dense, accumulate=accumulate) for is_dense in (False, True)]
    for run in runs:
        run.epoch()
        run.epoch()
    factored, dense = runs
    assert len(factored.norms) == 2 * (8 if accumulate == 1 else 3)  # the end of an epoch is a step
    torch.testing.assert_close(torch.stack(factored.norms), torch.stack(dense.norms))
    assert (torch.stack(factored.norms) > MAX_NORM).any()
    for own, expected in zip(factored.seen, dense.seen, strict=True):
        assert_twins(own, expected)
    assert_moved(factored.seen[-1])


def test_a_saved_state_goes_on_in_the_same_way(tmp_path: Path) -> None:
    whole, other = Run(is_dense=False), Run(is_dense=False)
    whole.epoch()
    whole.accelerator.save_state(str(tmp_path))
    whole.epoch()
    other.accelerator.load_state(str(tmp_path))
    other.epoch()
    assert_equal(other.classifier.weights(), whole.classifier.weights())


def test_clipping_by_value_is_refused() -> None:
    run = Run(is_dense=False)
    run.accelerator.backward(run.model(**next(iter(run.loader))))
    run.accelerator.clip_grad_value_(run.model.parameters(), 1e-4)
    before = run.classifier.weights()
    with pytest.raises(ValueError, match="more than a common factor"):
        run.optimizer.step()
    assert_equal(run.classifier.weights(), before)


def test_a_forgotten_output_layer_is_refused_at_the_first_step() -> None:
    accelerator, model = accelerate.Accelerator(cpu=True), Classifier(is_dense=False)
    before = model.weights()
    prepared = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader())
    accelerator.backward(prepared[0](**next(iter(prepared[2]))))
    with pytest.raises(ValueError, match=r"AdamW holds .* FactoredLinear"):
        prepared[1].step()
    assert_equal(model.weights(), before)
