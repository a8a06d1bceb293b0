"""GrammarCheck: whether what clients want their output to match can be had, before it goes to the engine."""

from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError

from llguidance import LLTokenizer

from vllm_obs.engine.errors import RequestError, RequestFailedError
from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.engine.structured.compiler import GrammarCompiler
from vllm_obs.engine.structured.params import StructuredOutputsParams
from vllm_obs.engine.structured.token_table import TokenWords, token_table

CHECK_SECONDS = 4.0


class GrammarCheck:
    """Compiles grammars as the engine will, each once."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        def load() -> LLTokenizer:
            return token_table(TokenWords.of(tokenizer, vocab_size), vocab_size, makes_masks=False)

        self._compiler = GrammarCompiler(load)

    def prepare(self) -> Future[None]:
        """Begin to make what every grammar needs, in a thread; done when it is made."""
        return self._compiler.prepare()

    def grammar_of(self, params: StructuredOutputsParams) -> str:
        """The grammar, known to compile. RequestError otherwise, RequestFailedError where too many wait.

        Takes milliseconds, so it is not for an event loop.
        """
        try:
            return self._checked(params.grammar_text())
        except RequestError as error:
            error.param = params.param
            raise

    def _checked(self, grammar: str) -> str:
        compiled = self._compiler.compile(grammar)
        try:
            compiled.result(CHECK_SECONDS)
        except LateError:
            if not compiled.running():
                raise RequestFailedError("Too many grammars wait to be compiled.", "under_pressure") from None
            raise RequestError(
                f"The grammar takes longer than {CHECK_SECONDS:g} s to compile.",
                "structured_outputs",
                reason="unsupported",
            ) from None
        return grammar
