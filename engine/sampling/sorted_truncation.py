"""The same filters as `truncation`, written with whole sorts in torch: for accelerators, and as the reference."""

import torch


def truncated_weights(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """Weights (R, vocab), 0 for what min_p, top_k and top_p (columns (R,), in this order) leave out.

    logits: float32 (R, vocab). Ties at a boundary stay in. top_k is int64, 0 for off; the rest is float32.
    """
    vocab_size = logits.shape[-1]
    ordered = logits.sort(dim=-1, descending=True).values
    weights = ((logits - ordered[:, :1]) / temperature[:, None]).exp()
    k = torch.where(top_k > 0, top_k, vocab_size).clamp(max=vocab_size)
    kth = ordered.gather(1, (k - 1)[:, None])
    weights = weights * ((logits >= kth) & (weights >= min_p[:, None]))

    descending = weights.sort(dim=-1, descending=True).values
    reached = descending.double().cumsum(dim=-1)
    share = top_p.double()[:, None] * reached[:, -1:]
    last = (reached < share).sum(dim=-1, keepdim=True).clamp(max=vocab_size - 1)
    smallest = torch.where(top_p[:, None] < 1.0, descending.gather(1, last), 0.0)
    return weights * (weights >= smallest)
