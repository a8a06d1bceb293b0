"""How many tokens of a sequence lie in its KV blocks, now or after a past step."""

from vllm_obs.telemetry.ledger import SequenceLedger


def tokens_held(ledger: SequenceLedger, step: int | None = None) -> int | None:
    """Tokens whose keys and values its blocks hold or were being given room for; None if that is not known."""
    for run in reversed(ledger.step_runs):
        if step is None:
            return run.num_computed + run.num_steps * run.num_tokens
        if run.first_step <= step:
            return run.num_computed + min(run.num_steps, step - run.first_step + 1) * run.num_tokens
    return None
