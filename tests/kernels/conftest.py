"""Kernels run on a GPU, or in Triton's interpreter where there is none."""

import os

import torch

# Triton asks once, when it is imported, and it is imported by the first test that needs it.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
