"""Log-probabilities in the shapes of the two completion APIs."""

from dataclasses import dataclass
from typing import Any

from vllm_obs.engine.frontend.outputs import TokenLogprob
from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.server.schema_sampling import SamplingRequest
from vllm_obs.server.state import ApiServer


@dataclass(frozen=True)
class LogprobShapes:
    """Turns `TokenLogprob`s into JSON. `as_token_ids` spells tokens `token_id:N`, which keeps them apart."""

    tokenizer: Tokenizer
    as_token_ids: bool = False

    @classmethod
    def of(cls, api: ApiServer, request: SamplingRequest) -> "LogprobShapes":
        """The shapes that a request asks for, or its server sets for all."""
        as_token_ids = request.return_tokens_as_token_ids or api.server.return_tokens_as_token_ids
        return cls(api.engine.tokenizer, as_token_ids)

    def token(self, token_id: int) -> str:
        """How a token is named."""
        return f"token_id:{token_id}" if self.as_token_ids else self.tokenizer.token_str(token_id)

    def chat(self, entries: list[TokenLogprob], num_top: int) -> dict[str, Any]:
        """The `logprobs` object of a chat choice."""
        return {
            "content": [
                {
                    **self._chat_token(entry.token_id, entry.logprob),
                    "top_logprobs": [self._chat_token(id_, logprob) for id_, logprob, _ in entry.top[:num_top]],
                }
                for entry in entries
            ]
        }

    def _chat_token(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self.token(token_id),
            "logprob": logprob,
            "bytes": list(self.tokenizer.token_bytes(token_id)),
        }

    def completion(
        self, token_ids: list[int], entries: list[TokenLogprob | None], offsets: list[int]
    ) -> dict[str, Any]:
        """The `logprobs` object of a text choice, whose tokens begin at these characters of its text."""
        return {
            "text_offset": offsets,
            "token_logprobs": [entry and entry.logprob for entry in entries],
            "tokens": [self.token(token_id) for token_id in token_ids],
            "top_logprobs": [entry and self._by_token(entry) for entry in entries],
        }

    def _by_token(self, entry: TokenLogprob) -> dict[str, float]:
        """The token itself first; of two tokens with the same text the better one counts."""
        by_token = {self.token(entry.token_id): entry.logprob}
        for token_id, logprob, _ in entry.top:
            by_token.setdefault(self.token(token_id), logprob)
        return by_token

    def prompt(self, entries: list[TokenLogprob | None]) -> list[dict[str, Any] | None]:
        """The `prompt_logprobs` list: by token id, the prompt's own token first."""
        return [entry and self._by_id(entry) for entry in entries]

    def _by_id(self, entry: TokenLogprob) -> dict[str, Any]:
        candidates = [(entry.token_id, entry.logprob, entry.rank), *entry.top]
        by_id: dict[str, Any] = {}
        for token_id, logprob, rank in candidates:
            token = {"logprob": logprob, "rank": rank, "decoded_token": self.tokenizer.token_str(token_id)}
            by_id.setdefault(str(token_id), token)
        return by_id
