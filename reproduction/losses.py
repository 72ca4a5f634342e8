"""The losses of figures 2 and 5: their keys in records and commands, and their titles in tables and figures."""

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
PENN_TREEBANK = "ptb"  # the text of all figures, where the settings of a result name no other
FIGURE_3_B = 28.0
SWEPT_KEYS = ("network.head.a", "network.head.b")  # the only settings that differ within figure 3
