"""GrammarCompiler: grammars become matchers in a thread of their own, within limits, the last ones kept."""

import contextlib
import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock, get_native_id

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.structured.deep_stack import on_stack_of
from vllm_obs.engine.structured.grammar_text import told

MAX_KEPT = 256
MAX_KEPT_CHARS = 1 << 20
"""Of all kept grammars together: what one takes is up to 300 bytes for each of its characters."""

LIMITS = LLParserLimits(
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=250_000,
    verbose_errors=False,
)
"""What llguidance may spend: about 40 ms to compile, 15 ms for the tokens of one place, 100 MB of states."""

STACK_BYTES = 8 << 20
STACK_BYTES_A_CHAR = 800
"""llguidance follows references by recursion: rules or definitions of which each names the next take up to 450
bytes of stack for each character that writes them down, and where the stack ends the process ends.
"""

NICENESS = 10
"""Of the compiling thread: where it shares its core with a step, it is the one that waits."""

Compiled = Future[LLMatcher]

logger = logging.getLogger(__name__)


class GrammarCompiler:
    """Compiles each grammar once; callable from any thread.

    `load_tokens` makes the token table, in the compiling thread, at first use. That holds the interpreter's lock
    for tenths of a second (compiling lets go of it), so who has streams to feed calls `prepare` before any come.
    """

    def __init__(self, load_tokens: Callable[[], LLTokenizer]) -> None:
        self._load_tokens = load_tokens
        self._tokens: LLTokenizer | None = None
        self._kept: OrderedDict[str, Compiled] = OrderedDict()
        self._num_chars = 0
        self._thread: ThreadPoolExecutor | None = None
        self._lock = Lock()

    def prepare(self) -> Future[None]:
        """Have the token table made; done when it is. If it cannot be made, the grammars that need it fail."""
        with self._lock:
            return self._pool().submit(self._prepare)

    def compile(self, grammar: str) -> Compiled:
        """A matcher at the grammar's beginning, to be copied; a RequestError in it where there is none."""
        with self._lock:
            found = self._kept.get(grammar)
            if found is not None:
                self._kept.move_to_end(grammar)
                return found
            compiled = self._kept[grammar] = self._pool().submit(self._compile, grammar)
            self._num_chars += len(grammar)
            self._make_room()
            return compiled

    def close(self) -> None:
        """End the thread; what waits for it is cancelled."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _pool(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "grammar", initializer=_give_way)
        return self._thread

    def _prepare(self) -> None:
        self._table()

    def _compile(self, grammar: str) -> LLMatcher:
        tokens, num_bytes = self._table(), STACK_BYTES + STACK_BYTES_A_CHAR * len(grammar)
        try:
            return on_stack_of(num_bytes, lambda: build_matcher(tokens, grammar))
        except RequestError:
            raise
        except BaseException as error:  # Rust's panics among them: whatever it is, it is this grammar's
            logger.warning(
                "A grammar of %d characters could not be compiled: %s", len(grammar), type(error).__name__
            )
            raise _unusable("the compiler failed") from error

    def _table(self) -> LLTokenizer:
        if self._tokens is None:
            self._tokens = self._load_tokens()
        return self._tokens

    def _make_room(self) -> None:
        while len(self._kept) > MAX_KEPT or (self._num_chars > MAX_KEPT_CHARS and len(self._kept) > 1):
            grammar, _ = self._kept.popitem(last=False)
            self._num_chars -= len(grammar)


def build_matcher(tokens: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the grammar's beginning. RequestError, reason unsupported, where it cannot be one."""
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()  # what allows nothing at all, or takes too long, is found out here
    if matcher.is_error():
        raise _unusable(_plain(matcher.get_error(), grammar))
    return matcher


def _unusable(why: str) -> RequestError:
    return RequestError(f"The grammar cannot be used: {why}.", "structured_outputs", reason="unsupported")


def _give_way() -> None:
    """Linux keeps a niceness for each thread, though the call is named for processes."""
    niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, get_native_id(), niceness)


def _plain(error: str, grammar: str) -> str:
    """What llguidance complains of, in one line."""
    line = told(error, grammar)
    return "nothing can match it" if line.startswith("NoExtension") else line
