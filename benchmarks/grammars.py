"""What grammars cost: to compile and a token by library, a step of the engine, and a running server.

`costs` compares llguidance and xgrammar (if it is there), `sampling` prints what masks add to sampling 16 rows,
`engine` the CPU time of steps with and without a grammar; `throughput URL` and `compiling URL` ask a server.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from grammar_engine import measure_engine
from grammar_sampling import measure_sampling
from grammar_server import measure_compiling, measure_throughput, run

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.frontend.tokenizer import Tokenizer, load_tokenizer
from vllm_obs.engine.structured.compiler import build_matcher
from vllm_obs.engine.structured.params import StructuredOutputsParams
from vllm_obs.engine.structured.token_table import TokenWords, token_table

USER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 1000},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        "street": {"type": "string"},
    },
    "required": ["id", "tags", "zip", "street"],
}
VARIANT = {"type": "object", "properties": {"v": {"type": "string", "maxLength": 40}}, "required": ["k", "v"]}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "flat": (
        {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}},
        '{"name": "Ada Lovelace of London", "age": 36}',
    ),
    "nested": (
        {"type": "object", "properties": {"users": {"type": "array", "items": USER}}, "required": ["users"]},
        '{"users": [{"id": 17, "tags": ["a", "b"], "zip": "12345", "street": "Main street 17, upper floor"}]}',
    ),
    "anyOf": (
        {"anyOf": [{**VARIANT, "properties": {"k": {"const": i}, **VARIANT["properties"]}} for i in range(20)]},  # type: ignore[dict-item]
        '{"k": 7, "v": "some text that is not too long"}',
    ),
}
"""A schema, and a text that it accepts."""

SCHEMAS: dict[str, dict[str, Any]] = {
    "story": {
        "type": "object",
        "properties": {"story": {"type": "string", "minLength": 4000}},
        "required": ["story"],
    },
    "users": {
        "type": "object",
        "properties": {"users": {"type": "array", "items": USER, "minItems": 100}},
        "required": ["users"],
    },
}
"""What no output of a few hundred tokens comes to the end of."""

TEXTS = {
    "story": '{"story": "Once upon a time there was a girl named Lily. She loved to play in the sunshine',
    "users": '{"users": [{"id": 17, "tags": ["a", "b"], "zip": "12345", "street": "Main street 17"}, {"id": 170',
}
"""How their outputs begin."""


class Cost(NamedTuple):
    """Milliseconds to compile; microseconds for the mask (mean, worst) and to take a token (mean)."""

    compile_ms: float
    mask_us: float
    worst_mask_us: float
    accept_us: float


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds it took, and its result."""
    begun = time.perf_counter()
    result = act()
    return time.perf_counter() - begun, result


def walk(
    fill: Callable[[], Any], accept: Callable[[int], Any], token_ids: list[int]
) -> tuple[float, float, float]:
    """Mean and worst microseconds of a mask, mean of a token taken."""
    masks, accepts = [], []
    for token_id in token_ids:
        masks.append(timed(fill)[0] * 1e6)
        accepts.append(timed(lambda token_id=token_id: accept(token_id))[0] * 1e6)  # type: ignore[misc]
    return float(np.mean(masks)), max(masks), float(np.mean(accepts))


def of_llguidance(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Cost]:
    """The cost of each case."""
    seconds, tokens = timed(lambda: token_table(TokenWords.of(tokenizer, vocab_size), vocab_size))
    print(f"llguidance: token table {seconds * 1e3:.0f} ms")
    words = np.zeros(-(-vocab_size // 32), np.int32)
    costs = {}
    for name, (schema, text) in CASES.items():
        params = StructuredOutputsParams(json=schema)
        seconds, matcher = timed(lambda params=params: build_matcher(tokens, params.grammar_text()))  # type: ignore[misc]

        def fill(matcher: Any = matcher) -> None:
            matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)

        token_ids = tokenizer.encode(text, add_special_tokens=False)
        costs[name] = Cost(seconds * 1e3, *walk(fill, matcher.consume_token, token_ids))
    return costs


def of_xgrammar(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Cost]:
    """The cost of each case; ImportError where it is not installed (it needs transformers)."""
    import xgrammar  # type: ignore[import-not-found]

    vocabulary = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
    ends = list(tokenizer.eos_token_ids)
    seconds, info = timed(
        lambda: xgrammar.TokenizerInfo(
            vocabulary, xgrammar.VocabType.RAW, vocab_size=vocab_size, stop_token_ids=ends
        )
    )
    print(f"xgrammar: token table {seconds * 1e3:.0f} ms")
    compiler = xgrammar.GrammarCompiler(info, max_threads=2)
    mask = xgrammar.allocate_token_bitmask(1, vocab_size)
    costs = {}
    for name, (schema, text) in CASES.items():
        source = json.dumps(schema)
        seconds, grammar = timed(lambda source=source: compiler.compile_json_schema(source, strict_mode=False))  # type: ignore[misc]
        matcher = xgrammar.GrammarMatcher(grammar)
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        fill = lambda matcher=matcher: matcher.fill_next_token_bitmask(mask, 0)  # noqa: E731
        costs[name] = Cost(seconds * 1e3, *walk(fill, matcher.accept_token, token_ids))
    return costs


def print_costs() -> None:
    """Print both tables."""
    model = EngineArgs(dtype="float32").create_engine_config().model
    tokenizer, vocab_size = load_tokenizer(model), model.architecture.vocab_size
    for measure in (of_llguidance, of_xgrammar):
        try:
            costs = measure(tokenizer, vocab_size)
        except ImportError as error:
            print(f"{measure.__name__.removeprefix('of_')} is not there: {error}")
            continue
        print(f"{'':8}{'compile':>12}{'mask':>10}{'worst':>10}{'token':>10}")
        for name, cost in costs.items():
            numbers = (f"{cost.compile_ms:.1f} ms", *(f"{number:.0f} us" for number in cost[1:]))
            print(f"{name:8}{numbers[0]:>12}" + "".join(f"{number:>10}" for number in numbers[1:]))


def parser() -> argparse.ArgumentParser:
    """The commands and their numbers."""
    made = argparse.ArgumentParser(description=__doc__)
    commands = made.add_subparsers(dest="command", required=True)
    commands.add_parser("costs")
    commands.add_parser("sampling")
    engine = commands.add_parser("engine")
    engine.add_argument("--schema", choices=sorted(SCHEMAS), default="story")
    engine.add_argument("--pairs", type=int, default=8)
    engine.add_argument("--tokens", type=int, default=60)
    engine.add_argument("--temperature", type=float, default=0.8)
    throughput = commands.add_parser("throughput")
    throughput.add_argument("url")
    throughput.add_argument("--schema", choices=sorted(SCHEMAS), default="story")
    throughput.add_argument("--pairs", type=int, default=5)
    throughput.add_argument("--seconds", type=float, default=8.0)
    commands.add_parser("compiling").add_argument("url")
    return made


def main() -> None:
    """Run one command."""
    args = parser().parse_args()
    if args.command == "costs":
        print_costs()
    elif args.command == "sampling":
        measure_sampling({name: (SCHEMAS[name], text) for name, text in TEXTS.items()})
    elif args.command == "engine":
        measure_engine(SCHEMAS[args.schema], args.pairs, args.tokens, args.temperature)
    elif args.command == "throughput":
        run(measure_throughput, args.url, SCHEMAS[args.schema], args.pairs, args.seconds)
    else:
        run(measure_compiling, args.url)


if __name__ == "__main__":
    main()
