"""The numbers that the paper prints in its two tables, and its slips.

A. de Brébisson and P. Vincent, The Z-loss: a shift and scale invariant classification loss belonging to the Spherical
Family, 2016 (arXiv 1604.08859). The text of the paper has no numbers of its figures.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from reproduction.report.score_texts import MINUS
from reproduction.scores import top
from reproduction.timed_parts import Device, Part

CITATION = "A. de Brébisson and P. Vincent, The Z-loss: a shift and scale invariant classification loss, 2016"
ADDRESS = "https://arxiv.org/abs/1604.08859"

_HOUR = 3600.0
_DAY = 24 * _HOUR

# Table 1: an epoch of One Billion Word with net1. GPU: Titan X; CPU: i7-5930K.
EPOCH_S: Mapping[tuple[Part, str, Device], float] = {
    ("model", "softmax", "cpu"): 78.5 * _DAY,
    ("output", "softmax", "cpu"): 69.7 * _DAY,
    ("model", "softmax", "cuda"): 4.56 * _DAY,
    ("output", "softmax", "cuda"): 4.44 * _DAY,
    ("model", "hierarchical", "cuda"): 12.23 * _HOUR,
    ("output", "hierarchical", "cuda"): 10.88 * _HOUR,
    ("model", "z_loss", "cpu"): 7.50 * _DAY,
    ("output", "z_loss", "cpu"): 8.68 * _HOUR,
    ("model", "z_loss", "cuda"): 2.81 * _HOUR,
    ("output", "z_loss", "cuda"): 1.24 * _HOUR,
}
HARDWARE: Mapping[Device, str] = {"cpu": "Intel i7-5930K", "cuda": "Nvidia Titan X"}


def epoch_ratio(part: Part, loss: str, device: Device) -> float | None:
    """Return the time of an epoch with this loss, divided by its time with the Z-loss."""
    own = EPOCH_S.get((part, loss, device))
    return None if own is None else own / EPOCH_S[part, "z_loss", device]


@dataclass(frozen=True)
class FinalScore:
    """A line of table 2."""

    top_1_error: float | None
    top_20_error: float | None
    train_s: float | None

    def error(self, score: str) -> float | None:
        """Return an error by its key, where the table has it."""
        return {"top_1_error": self.top_1_error, "top_20_error": self.top_20_error}.get(score)


# Table 2: One Billion Word, on a Titan X.
FINAL_ERRORS = (top(1), top(20))  # the table has no others
FINAL_SCORES: Mapping[str, FinalScore] = {  # by the keys of the models
    "constant": FinalScore(0.9544, 0.6558, None),
    "softmax_net1": FinalScore(None, None, 40 * _DAY),
    "hierarchical_softmax_net1": FinalScore(0.710, 0.3573, 4.08 * _DAY),
    "z_loss_net1": FinalScore(0.7213, 0.3643, 0.97 * _DAY),
    "z_loss_net2": FinalScore(0.7077, 0.3829, 3.14 * _DAY),
}


def convergence_ratio() -> float:
    """Return the time to converge of hierarchical softmax, divided by the time of the Z-loss with the same network."""
    hierarchical_s = FINAL_SCORES["hierarchical_softmax_net1"].train_s
    z_loss_s = FINAL_SCORES["z_loss_net1"].train_s
    assert hierarchical_s is not None
    assert z_loss_s is not None
    return hierarchical_s / z_loss_s


SLIPS = (
    (
        "section 2, gradient of z_c",
        f"Printed with the opposite sign for the target, and as z_c z_k {MINUS} 1 for the others. It is "
        f"(D {MINUS} 1 {MINUS} z_c²) / (D sigma) and {MINUS}(1 + z_c z_k) / (D sigma). The latter vanishes at z_k = "
        f"{MINUS}1 / z_c, not at 1 / z_c, and so it does at the optimum that the paper gives further down. In the "
        "gradient of the loss the target's part is right, and the others' should have z_c z_k + 1.",
    ),
    (
        "section 2, gradient of the Z-loss",
        "Its components are said to sum to one. They sum to zero.",
    ),
    (
        "section 1.2, squared error",
        "The derivative for classes other than the target is +o_k. The components sum to the sum of all o_k minus one, "
        "not to zero.",
    ),
    (
        "section 3, top-k error",
        "Defined as the mean of r_c ≤ k, which is the accuracy. The error is the mean of r_c > k.",
    ),
    (
        "table 2, caption",
        "a and b are said to be tuned to maximize the top-1 error; to minimize it is meant.",
    ),
    (
        "table 1, caption",
        "An epoch is said to have about 150 million n-grams, but the training text has 0.8 billion words. We "
        "extrapolate to the number of the table.",
    ),
)
