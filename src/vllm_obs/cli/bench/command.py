"""`vllm-obs bench serve`: reads the options, runs the load, prints and saves the report."""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson
from tqdm import tqdm

from vllm_obs.cli.bench.client import BenchClient, ServerUnreachableError
from vllm_obs.cli.bench.load import LoadGenerator
from vllm_obs.cli.bench.options import BENCH_FLAGS, BenchOptions
from vllm_obs.cli.bench.report import Report
from vllm_obs.cli.foreign_flags import refuse_misspelt
from vllm_obs.cli.parser import Parser, add_flags
from vllm_obs.engine.errors import ConfigError

EXIT_FAILED = 1

_USAGE = "vllm-obs bench serve [FLAGS]"
_DESCRIPTION = """\
Send streamed completions to a running OpenAI server and report throughput and latency.

Without --request-rate, --max-concurrency requests are kept under way (closed loop). With it, requests are sent
at random moments whatever the server does (open loop), and latencies count from those moments."""
_EPILOG = """\
[In brackets: the default.] Exit codes: 0 all requests succeeded, 1 some did not or there is no server,
78 bad options."""


def main(argv: list[str]) -> int:
    """Run `bench serve`."""
    if argv and argv[0] in ("-h", "--help"):
        print("usage: vllm-obs bench serve [FLAGS]   (vllm-obs bench serve --help tells more)")
        return 0
    if not argv or argv[0] != "serve":
        raise ConfigError("vllm-obs bench knows one measurement: vllm-obs bench serve")
    options = read_options(argv[1:])
    try:
        report = _run(measure(options))
    except ServerUnreachableError as error:
        print(f"vllm-obs: {error}", file=sys.stderr)
        return EXIT_FAILED
    print(report.table())
    for cause, count in report.failures():
        print(f"{count} failed: {cause}", file=sys.stderr)
    if options.save_result:
        print(f"saved to {save(report)}")
    return EXIT_FAILED if report.failures() else 0


def read_options(argv: list[str]) -> BenchOptions:
    """The options of a command line. Raises ConfigError."""
    parser = Parser("vllm-obs bench serve", _USAGE, _DESCRIPTION, _EPILOG)
    add_flags(parser, BENCH_FLAGS, {field.name: field.default for field in fields(BenchOptions)})
    refuse_misspelt(argv, parser.options)
    typed = parser.parse(argv)
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in typed.items()}
    return BenchOptions(**values)


async def measure(options: BenchOptions) -> Report:
    """Wait for the server, warm it up, send the load. Raises ServerUnreachableError."""
    client = BenchClient(options)
    try:
        offered = await client.wait_until_ready(options.ready_check_timeout_sec)
        model = options.model or offered
        await LoadGenerator(options, client, model).warm_up()
        total = None if options.duration else options.num_prompts
        with tqdm(total=total, unit=" requests", disable=options.disable_tqdm) as bar:
            outcomes = await LoadGenerator(options, client, model, on_done=bar.update).run()
        return Report(options, model, outcomes)
    finally:
        client.close()


def save(report: Report) -> Path:
    """Write the JSON file and return its path. Raises ConfigError."""
    date = time.strftime("%Y%m%d-%H%M%S")
    options = report.options
    load = f"{options.request_rate:g}qps" if options.is_open_loop else f"concurrency{options.max_concurrency}"
    name = options.result_filename or f"{load}-{report.model.rpartition('/')[2]}-{date}.json"
    path = Path(options.result_dir) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(report.as_json(date), option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    return path


def _run(measurement: Coroutine[Any, Any, Report]) -> Report:
    """Run on uvloop where there is one: the client shares its cores with the server it measures."""
    runner: Callable[..., Report] = asyncio.run
    try:
        import uvloop
    except ImportError:
        pass
    else:
        runner = uvloop.run
    return runner(measurement)
