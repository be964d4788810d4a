"""transformers' top-p warper as a candidate: ``callable: "examples.transformers_top_p:top_p"``.

The warper takes one p for a whole batch, so each row is warped alone.
"""

import torch
from transformers import TopPLogitsWarper


def top_p(logits: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Return the masked logits, float32 [B, V]; ``p`` is float32 [B]."""
    rows = [TopPLogitsWarper(top_p=float(p[row]))(None, logits[row : row + 1]) for row in range(len(logits))]
    return torch.cat(rows)
