"""Weights of classes: the loss of each target is multiplied by the weight of its class."""

from torch import Tensor, nn

from zloss.inputs import REALS, check_tensor


def register_class_weight(
    module: nn.Module,
    class_weight: Tensor | None,  # (C,)
    num_classes: int | None = None,
) -> None:
    """Give a loss or a head its `class_weight`, which moves with it and is part of its checkpoints."""
    if class_weight is not None:
        check_tensor("class_weight", class_weight, REALS, dims=(1,))
        _check_length(
            class_weight, max(2, len(class_weight)) if num_classes is None else num_classes
        )
        if not ((class_weight >= 0) & class_weight.isfinite()).all():
            raise ValueError("class_weight must hold finite numbers >= 0")
        # Loading a checkpoint writes into the buffer. A buffer is not trained.
        class_weight = class_weight.detach().clone()
    module.register_buffer("class_weight", class_weight)


def weigh(
    values: Tensor,  # (B, K)
    classes: Tensor,  # (B, K)
    class_weight: Tensor | None,  # (C,)
    num_classes: int,
) -> Tensor:  # (B, K)
    """Return one value per target times the weight of its class."""
    if class_weight is None:
        return values
    return values * weight_of(classes, class_weight, num_classes).to(values.dtype)


def weight_of(classes: Tensor, class_weight: Tensor, num_classes: int) -> Tensor:  # as classes
    """Return the weights of these classes."""
    _check_length(class_weight, num_classes)
    if class_weight.device != classes.device:
        raise ValueError(
            f"class_weight is on {class_weight.device} and the batch on {classes.device}: move the loss with the "
            "model, as in loss.to(device)"
        )
    return class_weight[classes]


def _check_length(class_weight: Tensor, num_classes: int) -> None:
    if class_weight.shape != (num_classes,):
        raise ValueError(
            f"class_weight must have one entry per class, ({num_classes},), got {tuple(class_weight.shape)}"
        )
