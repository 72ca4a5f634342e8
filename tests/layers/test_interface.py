"""The interface of a factored layer: its public names, its `repr`, and its agreement with a loss on ignored targets."""

import pytest
import torch
from torch import nn

import zloss
from tests.layers.small_layers import CLASSES, HIDDEN, LOSS, batch, make_layer

# Names of the factored form only: its factors, the recorded gradient, steps, refactors, verdicts and captures.
OF_THE_FACTORED_FORM = {
    *("adopt_rows", "factors", "materialised", "matrix", "product_dtype", "reset_parameters"),
    *("grad_norm", "record", "recorded_gradient", "scale_grad_", "is_grad_unscaled"),
    *("unscale_grad_", "step_", "refactor", "refactors", "condition", "max_condition", "drift"),
    *("raise_faults", "synchronous", "waits_for_device", "uses_kernels", "begin_capture"),
    *("end_capture", "settle_foreign_writes", "attach", "pending"),
}


def test_dense_layer_has_the_same_interface() -> None:
    def public(layer: type) -> set[str]:
        return {name for name in dir(layer) if not name.startswith("_")}

    own = public(zloss.FactoredLinear) - set(dir(nn.Module))
    assert own - public(zloss.DenseLinear) == OF_THE_FACTORED_FORM


def test_repr_tells_the_essentials(device: torch.device) -> None:
    text = repr(make_layer(device))
    assert f"in_features={HIDDEN}, num_classes={CLASSES}" in text
    assert "state_dtype=torch.float64" in text


@pytest.mark.parametrize("ignored", [0, -1])
def test_a_loss_that_ignores_another_target_is_refused(ignored: int, device: torch.device) -> None:
    layer, gram = (
        make_layer(device),
        zloss.GramLinear(HIDDEN, CLASSES, device=device, dtype=torch.float64),
    )
    loss = zloss.ZLoss(a=0.2, b=8.0, ignore_index=ignored)
    for each in (layer, gram):
        with pytest.raises(ValueError, match=f"say it to the layer, ignore_index={ignored}"):
            loss(each(*batch(layer)))
    told = make_layer(device, ignore_index=ignored)
    assert torch.isfinite(loss(told(*batch(told))))
    assert torch.isfinite(LOSS(told(*batch(told)))), "where the loss was told nothing"
