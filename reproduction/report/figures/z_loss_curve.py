"""Figure 1: the Z-loss against z."""

from typing import TYPE_CHECKING, Any

import torch

import zloss
from reproduction.report.claims.properties import CLASSES, A, B
from reproduction.report.evidence import Evidence
from reproduction.report.figures.canvas import RED, new_figure
from reproduction.report.score_texts import MINUS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_z_loss(evidence: Evidence) -> "Figure":
    """Draw the Z-loss against z_c, with its asymptote and the bounds of z_c."""
    bound = (CLASSES - 1) ** 0.5
    z = torch.linspace(-bound, bound, 401, dtype=torch.float64)
    # With mean 0 and variance 1, z is its own z-score.
    moments = (torch.zeros_like(z), torch.full_like(z, CLASSES))
    loss = zloss.z_loss(zloss.SphericalStats.from_moments(z, *moments, CLASSES), a=A, b=B)
    figure = new_figure(3.2)
    axes: Any = figure.add_subplot()
    axes.plot(z[z <= B], B - z[z <= B], "--", color="#777777", linewidth=1.2)
    axes.plot(z, loss, color=RED, linewidth=2)
    axes.text(-23, 37, "Z-loss", color=RED, fontweight="bold")
    axes.text(-14, 20.3, f"asymptote b {MINUS} z", color="#555555", ha="right", va="top")
    for sign, side in ((-1, "left"), (1, "right")):
        axes.axvline(sign * bound, color="#777777", linewidth=1, linestyle=":")
        text = f"{'' if sign > 0 else MINUS}√(D {MINUS} 1)"
        axes.text(sign * (bound - 0.8), 44, text, ha=side, va="top", color="#555555")
    axes.set(
        xlabel="z of the target",
        ylabel="loss",
        ylim=(0, 45),
        title=f"D = {CLASSES:,}, a = {A:g}, b = {B:g}",
    )
    return figure
