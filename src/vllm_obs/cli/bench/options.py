"""What one measurement does: the options of `vllm-obs bench serve`, under vLLM's names."""

import math
from dataclasses import dataclass
from urllib.parse import urlsplit

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import Flag, number, whole_number

METRICS = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True)
class BenchOptions:
    """All options. Lengths are in tokens, rates in requests a second, `duration` in seconds."""

    base_url: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    endpoint: str = "/v1/completions"
    model: str | None = None
    header: tuple[str, ...] = ()
    ready_check_timeout_sec: float = 0.0
    request_timeout: float = 600.0
    dataset_name: str = "random"
    random_input_len: int = 1024
    random_output_len: int = 128
    random_range_ratio: float = 0.0
    random_prefix_len: int = 0
    random_token_ids: tuple[int, int] = (1000, 30_000)
    ignore_eos: bool = False
    temperature: float = 0.0
    num_prompts: int = 1000
    duration: float | None = None
    max_concurrency: int | None = None
    request_rate: float = math.inf
    burstiness: float = 1.0
    num_warmups: int = 0
    seed: int = 0
    percentile_metrics: tuple[str, ...] = METRICS
    metric_percentiles: tuple[float, ...] = (99.0,)
    goodput: tuple[tuple[str, float], ...] = ()
    save_result: bool = False
    save_detailed: bool = False
    result_dir: str = "."
    result_filename: str | None = None
    label: str | None = None
    disable_tqdm: bool = False

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"--{name.replace('_', '-')} {value} is not between {least} and {most}")
        if not self.endpoint.endswith("/completions") or self.endpoint.endswith("/chat/completions"):
            raise ConfigError(
                f"--endpoint {self.endpoint:.64}: /v1/completions is measured only (exact prompt tokens)"
            )
        if self.duration is not None and self.max_concurrency is None and math.isinf(self.request_rate):
            raise ConfigError("--duration needs --max-concurrency or --request-rate")
        low, high = self.random_token_ids
        if not 0 <= low < high:
            raise ConfigError(f"--random-token-ids {low}:{high} is not a range of ids")

    @property
    def url(self) -> str:
        """Where the server is, without the endpoint."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        url = (self.base_url or f"http://{host}:{self.port}").rstrip("/")
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ConfigError(f"--base-url {url:.64} is not an http:// or https:// address")
        return url

    @property
    def is_open_loop(self) -> bool:
        """Whether requests come at their own times, however long earlier ones take."""
        return math.isfinite(self.request_rate)


_BOUNDS: dict[str, tuple[float, float]] = {
    "port": (1, 65_535),
    "random_input_len": (1, 10_000_000),
    "random_output_len": (1, 10_000_000),
    "random_range_ratio": (0, 0.999),
    "random_prefix_len": (0, 10_000_000),
    "num_prompts": (1, 10_000_000),
    "duration": (0.001, 1_000_000),
    "max_concurrency": (1, 65_536),
    "request_rate": (1e-6, math.inf),
    "burstiness": (1e-3, 1e6),
    "num_warmups": (0, 1_000_000),
    "request_timeout": (0.001, 1_000_000),
    "ready_check_timeout_sec": (0, 1_000_000),
}


def rate(text: str) -> float:
    """A number of requests a second, or inf."""
    return math.inf if text == "inf" else number(text)


def id_range(text: str) -> tuple[int, int]:
    """LOW:HIGH as (low, high)."""
    low, _, high = text.partition(":")
    return whole_number(low), whole_number(high)


def metric_names(text: str) -> tuple[str, ...]:
    """Names of metrics, separated by commas."""
    names = tuple(part for part in text.split(",") if part)
    for name in names:
        if name not in METRICS:
            raise ValueError(f"{name[:64]!r} is not one of {', '.join(METRICS)}")
    return names


def percentiles(text: str) -> tuple[float, ...]:
    """Percentiles between 0 and 100, separated by commas."""
    values = tuple(number(part) for part in text.split(",") if part)
    for value in values:
        if not 0 <= value <= 100:
            raise ValueError(f"{value:g} is not between 0 and 100")
    return values


def objective(text: str) -> tuple[str, float]:
    """METRIC:MILLISECONDS, for example ttft:500."""
    name, _, limit = text.partition(":")
    if name not in ("ttft", "tpot", "e2el"):
        raise ValueError(f"{name[:64]!r} is not ttft, tpot or e2el")
    return name, number(limit)


BENCH_FLAGS = (
    Flag("base_url", "Server", "Address of the server, instead of host and port.", metavar="URL"),
    Flag("host", "Server", "Its host."),
    Flag("port", "Server", "Its port.", parse=whole_number),
    Flag("endpoint", "Server", "Its completions route.", metavar="PATH"),
    Flag("model", "Server", "Model name to send.", default_text="the server's first"),
    Flag("header", "Server", "Headers to send; OPENAI_API_KEY is sent as a bearer token.", "values",
         metavar="NAME=VALUE"),
    Flag("ready_check_timeout_sec", "Server", "How long to wait for the server to answer.", parse=number,
         metavar="SECONDS"),
    Flag("request_timeout", "Server", "A reply that takes longer has failed.", parse=number, metavar="SECONDS"),
    Flag("dataset_name", "Requests", "Where prompts come from.", choices=("random",)),
    Flag("random_input_len", "Requests", "Prompt tokens, exact: prompts are sent as token ids.",
         parse=whole_number, metavar="N"),
    Flag("random_output_len", "Requests", "Tokens to ask for.", parse=whole_number, metavar="N"),
    Flag("random_range_ratio", "Requests", "Lengths vary by up to this share, both ways.", parse=number,
         metavar="R"),
    Flag("random_prefix_len", "Requests", "Tokens before them that all prompts share.", parse=whole_number,
         metavar="N"),
    Flag("random_token_ids", "Requests", "Range the token ids are drawn from.", parse=id_range,
         metavar="LOW:HIGH", default_text="1000:30000"),
    Flag("ignore_eos", "Requests", "Let replies run to their full length.", "switch"),
    Flag("temperature", "Requests", "0 is greedy.", parse=number),
    Flag("num_prompts", "Load", "How many requests to send.", parse=whole_number, metavar="N"),
    Flag("duration", "Load", "Send for so long instead; what is under way then is finished.", parse=number,
         metavar="SECONDS"),
    Flag("max_concurrency", "Load", "Most requests under way at once.", parse=whole_number, metavar="N",
         default_text="no limit"),
    Flag("request_rate", "Load", "Requests a second, at random moments; latencies count from those moments.",
         parse=rate, metavar="RATE"),
    Flag("burstiness", "Load", "Shape of the gamma distribution between requests: 1 is Poisson, less is burstier.",
         parse=number, metavar="SHAPE"),
    Flag("num_warmups", "Load", "Requests sent before, and not counted.", parse=whole_number, metavar="N"),
    Flag("seed", "Load", "Seed of prompts and moments.", parse=whole_number, metavar="N"),
    Flag("percentile_metrics", "Report", "Metrics to print.", parse=metric_names, metavar="LIST"),
    Flag("metric_percentiles", "Report", "Percentiles to print.", parse=percentiles, metavar="LIST",
         default_text="99"),
    Flag("goodput", "Report", "Count requests that keep to ttft, tpot and e2el in milliseconds.", "values",
         parse=objective, metavar="METRIC:MS"),
    Flag("save_result", "Report", "Write a JSON file.", "switch"),
    Flag("save_detailed", "Report", "Put every request's figures into it.", "switch"),
    Flag("result_dir", "Report", "Where to.", metavar="DIR"),
    Flag("result_filename", "Report", "Its name.", metavar="NAME", default_text="from the options and the time"),
    Flag("label", "Report", "A word kept in it."),
    Flag("disable_tqdm", "Report", "No progress bar.", "switch"),
)  # fmt: skip
"""Each sets the field of BenchOptions with its name."""
