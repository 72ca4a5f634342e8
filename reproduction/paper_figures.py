"""The contents of figures 2 to 5: the losses, by the keys of records and commands, the scores, the text, a and b."""

from reproduction.scores import PAPER_SCORES, top

LOSS_TITLES = {
    "squared_error": "squared error",
    "taylor_softmax": "Taylor softmax",
    "spherical_softmax": "spherical softmax",
    "sigmoid": "sigmoid",
    "softmax": "softmax",
    "z_softmax": "Z-norm. softmax",
    "z_sigmoid": "Z-norm. sigmoid",
    "z_loss": "Z-loss",
}
FIGURE_LOSSES = {  # in the order of the figure
    2: ("squared_error", "taylor_softmax", "spherical_softmax", "sigmoid", "softmax", "z_loss"),
    5: ("softmax", "z_softmax", "sigmoid", "z_sigmoid", "z_loss"),
}
FIGURE_SCORES = {2: PAPER_SCORES, 5: tuple(map(top, (1, 10, 50)))}
FIGURE_3_SCORES = tuple(map(top, (1, 5, 10)))
CURVE_ERRORS = tuple(map(top, (1, 5, 10, 50)))  # the panels of figure 4
PENN_TREEBANK = "ptb"  # the text of all figures, where the settings of a result name no other
FIGURE_3_B = 28.0
SWEPT_KEYS = ("network.head.a", "network.head.b")  # the only settings that differ within figure 3
