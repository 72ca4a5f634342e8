"""The figures of the paper, drawn from our records, and one of ours for table 2: `FIGURES["figure2"](evidence)`.

Each is a matplotlib figure. They are narrow, so that they can be read on a phone, and explain their colours in words.
"""

from reproduction.report.figures.canvas import Draw
from reproduction.report.figures.loss_panels import draw_losses
from reproduction.report.figures.parameter_panels import draw_curves, draw_sweep
from reproduction.report.figures.training_times import draw_training_times
from reproduction.report.figures.z_loss_curve import draw_z_loss

FIGURES: dict[str, Draw] = {
    "figure1": draw_z_loss,
    "figure2": draw_losses(2, columns=2),
    "figure3": draw_sweep,
    "figure4": draw_curves,
    "figure5": draw_losses(5, columns=1),
    "table2": draw_training_times,
}
