"""Log-probabilities of the model's own distribution: the token's, its rank, and the best alternatives."""

import numpy as np
import numpy.typing as npt
import torch

from vllm_obs.engine.messages import Logprobs
from vllm_obs.engine.sampling.truncation import best_token_ids

Int64Array = npt.NDArray[np.int64]


def gather_logprobs(logprobs: torch.Tensor, token_ids: Int64Array, num_best: int) -> Logprobs:
    """`Logprobs` of P positions from float32 log-probabilities (P, vocab) and the tokens that came (P,).

    Alternatives are best first, lower ids first among equals; the rank is one more than the number of tokens
    that are strictly more probable.
    """
    tokens = torch.from_numpy(token_ids).to(logprobs.device)
    own = logprobs.gather(1, tokens[:, None])
    ranks = (logprobs > own).sum(-1) + 1
    num_best = min(num_best, logprobs.shape[-1])
    best = _best_tokens(logprobs, num_best)
    best_values = logprobs.gather(1, torch.from_numpy(best).to(logprobs.device))
    return Logprobs(
        token_ids=np.concatenate([token_ids[:, None], best], axis=1).astype(np.int32),
        logprobs=torch.cat([own, best_values], dim=1).cpu().numpy(),
        ranks=ranks.cpu().numpy().astype(np.int32),
    )


def position_of(every: Logprobs, position: int, num_best: int) -> Logprobs:
    """One position of several, with the first `num_best` of its alternatives."""
    one = slice(position, position + 1)
    return Logprobs(every.token_ids[one, : num_best + 1], every.logprobs[one, : num_best + 1], every.ranks[one])


def concatenate(parts: list[Logprobs]) -> Logprobs:
    """Several runs of positions, all with as many alternatives, as one."""
    return Logprobs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _best_tokens(logprobs: torch.Tensor, num_best: int) -> Int64Array:
    """int64 (P, num_best), best first."""
    if num_best == 0:
        return np.empty((len(logprobs), 0), np.int64)
    if logprobs.device.type != "cpu":
        found: Int64Array = logprobs.topk(num_best, dim=-1).indices.cpu().numpy()
        return found
    best = np.empty((len(logprobs), num_best), np.int64)
    for position, row in enumerate(logprobs.numpy()):
        ids = best_token_ids(row, num_best)
        best[position] = ids[np.argsort(-row[ids], kind="stable")[:num_best]]
    return best
