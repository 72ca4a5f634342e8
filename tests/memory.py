"""A watch on the memory of a step."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """A mode that finds the largest tensor that is made, without views of the tensors of the module."""

    numel: int  # of the largest so far; of a sparse one, the entries that it stores

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        held = [*module.parameters(), *module.buffers()]
        self._held = {tensor.untyped_storage().data_ptr() for tensor in held}
        self.numel = 0

    def __enter__(self) -> "LargestTensor":
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                dense = tensor._values() if tensor.layout == torch.sparse_coo else tensor
                if dense.untyped_storage().data_ptr() not in self._held:
                    self.numel = max(self.numel, dense.numel())
        return result
