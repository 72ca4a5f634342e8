"""A text to evaluate networks on, and scores by loops in Python."""

from typing import Any

import torch

from zloss_lab.ngrams import NgramBatches

CLASSES, CONTEXT, KS = 40, 3, (1, 3, 10)
TEXT = torch.randint(CLASSES, (300,), generator=torch.Generator().manual_seed(1))
EXAMPLES = 297


def text(device: torch.device | None = None, **options: Any) -> NgramBatches:
    return NgramBatches(TEXT, context=CONTEXT, batch_size=20, device=device, **options)


def expected(ranks: list[int], ks: tuple[int, ...] = KS) -> dict[str, float]:
    scores = {f"top_{k}_error": sum(rank > k for rank in ranks) / len(ranks) for k in ks}
    return scores | {
        "mrr": sum(1 / rank for rank in ranks) / len(ranks),
        "mean_rank": sum(ranks) / len(ranks),
    }
