"""`vllm-obs autotune`: times the configurations of each kernel on this GPU and writes the table for it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_obs.cli.parser import Parser
from vllm_obs.cli.printing import say
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import number, whole_number

if TYPE_CHECKING:
    from vllm_obs.engine.kernels.triton.model_shape import ModelShape
    from vllm_obs.engine.kernels.triton.tuning_session import TuningOrder

EXIT_FAILED = 1
DEFAULT_SECONDS = 600.0
MAX_SECONDS = 86_400.0
MAX_ROWS, MAX_TOKENS = 4096, 1 << 20

_USAGE = "vllm-obs autotune [--model MODEL] [--batch N] [--context TOKENS] [--seconds S] [--output FILE]"
_DESCRIPTION = """\
Find the fastest configuration of each Triton kernel on this machine's GPU, for the sizes of a model.

Each candidate is run in turn with the one that leads, with a cold cache; it takes the lead where the median of
their ratios is 2 % below 1 and it won four rounds of five. What was found is written in a table for cards of this
name, which the server then takes by itself. Nothing else should run on the GPU."""


def main(argv: list[str]) -> int:
    """Tune and write; 1 when the table cannot be written. ConfigError without a GPU, before anything is loaded."""
    options = _parser().parse(argv)
    _check(options)
    check_gpu()
    # Only here: torch and Triton take seconds to load.
    from vllm_obs.engine.kernels.triton.tuning_session import GpuCard, tune_card

    card = GpuCard.current()
    output = Path(options["output"]) if options["output"] else None
    tuned = tune_card(card, order_of(options), say)
    try:
        written = tuned.write(output)
    except OSError as error:
        print(f"vllm-obs: the table cannot be written: {error}; --output names another file", file=sys.stderr)
        return EXIT_FAILED
    say("\n".join([*tuned.lines(), "", f"The table is in {written}.", *tuned.hints(output)]))
    return 0


def check_gpu() -> None:
    """ConfigError, in one line, where no kernel can be timed."""
    from vllm_obs.engine.device import detect_device

    if detect_device("auto") != "cuda":
        raise ConfigError("autotune times kernels on an NVIDIA GPU, and this machine has none")
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(f"autotune needs a torch with CUDA; torch {torch.__version__} sees no GPU")


def order_of(options: dict[str, Any]) -> "TuningOrder":
    """What to tune for. ConfigError when the model is none."""
    from vllm_obs.engine.kernels.triton.tuning_session import TuningOrder
    from vllm_obs.engine.kernels.triton.workloads import WorkSize

    size = WorkSize(options["batch"], options["context"], options["context"])
    return TuningOrder(_shape(options["model"]), size, options["seconds"])


def _shape(model: str | None) -> "ModelShape":
    from vllm_obs.engine.kernels.triton.model_shape import LLAMA_3_8B, ModelShape

    if model is None:
        return LLAMA_3_8B
    from vllm_obs.engine.model.source import resolve_model

    source = resolve_model(model, "dummy")
    if source.architecture.is_encoder:
        raise ConfigError(f"--model {model}: {source.architecture.name} has no attention over a paged cache")
    return ModelShape.of(model, source.architecture)


def _check(options: dict[str, Any]) -> None:
    """ConfigError for what is out of bounds, before anything is loaded."""
    bounds = {"batch": (1, MAX_ROWS), "context": (16, MAX_TOKENS), "seconds": (1.0, MAX_SECONDS)}
    for name, (least, most) in bounds.items():
        if not least <= options[name] <= most:
            raise ConfigError(f"--{name} {options[name]:g} is not between {least:g} and {most:g}")


def _parser() -> Parser:
    parser = Parser("vllm-obs autotune", _USAGE, _DESCRIPTION)
    parser.add_argument("--model", default=None, metavar="MODEL", help="whose sizes to tune for [Llama 3 8B's]")
    parser.add_argument(
        "--batch", type=whole_number, default=32, metavar="N", help="sequences that decode together [32]"
    )
    parser.add_argument(
        "--context", type=whole_number, default=2048, metavar="TOKENS", help="tokens of a sequence [2048]"
    )
    parser.add_argument(
        "--seconds", type=number, default=DEFAULT_SECONDS, metavar="S", help="at most so long [600]"
    )
    parser.add_argument(
        "--output", default=None, metavar="FILE", help="write the table there, not where the server looks for it"
    )
    return parser
