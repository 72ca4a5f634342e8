"""The z-scores that a network under a Z-loss gives to the targets of a batch, for progress reports."""

from typing import NamedTuple

import torch

import zloss
from zloss.inputs import NotFiniteError
from zloss_lab.networks import NgramNetwork
from zloss_lab.ngrams import NgramBatches


class ZScores(NamedTuple):
    """The softness of a Z-loss, and the share of the targets of a batch that it has raised far enough."""

    a: float
    beyond_b: float  # share of targets whose z is larger than b


@torch.no_grad()
def z_scores_of(network: NgramNetwork, batches: NgramBatches, step: int) -> ZScores | None:
    """Return the z-scores of the batch of a step, or None if the network has no Z-loss on a spherical head.

    This takes a forward pass without dropout. It is meant for every hundredth step, after which the host waits anyway.
    """
    head = network.head
    if not isinstance(head, zloss.SphericalOutput) or not isinstance(head.loss, zloss.ZLoss):
        return None
    context, target = batches.batch(*divmod(step, len(batches)))
    network.eval()  # a step of training switches back
    try:
        z = head.layer(network.hidden(context), target).z
    except NotFiniteError:
        return None  # the next step says so, after a checkpoint
    parameters = head.loss.parameters_for(head.num_classes)
    share = (z > parameters["b"]).float().mean().item()
    return ZScores(parameters["a"], share)
