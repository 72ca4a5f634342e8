"""Counting what `torch.compile` compiles."""

from collections.abc import Callable

import torch


class Graphs(list[torch.fx.GraphModule]):
    """A compiler that compiles nothing and keeps what it was given."""

    def __call__(self, graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        self.append(graph)
        return graph.forward
