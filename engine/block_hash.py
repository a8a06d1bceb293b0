"""The names of full blocks: a sha256 chain over the parent's hash and the block's tokens."""

import hashlib

from vllm_obs.engine.request import Request


def root_hash(cache_salt: str | None) -> bytes:
    """The parent of a first block: whatever besides the tokens must be equal for blocks to be shared."""
    extra_keys = "" if cache_salt is None else f"cache_salt:{cache_salt}"
    return hashlib.sha256(extra_keys.encode("utf-8", "surrogatepass")).digest()


def block_hash(request: Request, index: int, block_size: int) -> bytes:
    """The 32-byte hash of the sequence's full block `index`, computed once and then kept with the sequence.

    Hashes are made in order, so only the blocks that somebody asks about cost anything.
    """
    hashes = request.block_hashes
    while len(hashes) <= index:
        begin = len(hashes) * block_size
        parent = hashes[-1] if hashes else root_hash(request.cache_salt)
        tokens = request.token_ids[begin : begin + block_size].tobytes()
        hashes.append(hashlib.sha256(parent + tokens).digest())
    return hashes[index]
