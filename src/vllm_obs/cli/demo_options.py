"""The options of `vllm-obs demo`."""

from dataclasses import dataclass

from vllm_obs.cli.foreign_flags import refuse_misspelt
from vllm_obs.cli.parser import Parser, add_flags
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import Flag, number, whole_number
from vllm_obs.engine.synthetic.regimes import REGIMES
from vllm_obs.engine.synthetic.settings import MAX_RANKS

ALL = "all"
MAX_ENGINES = 8
MAX_API_SERVERS = 8
MIN_PERIOD_SECONDS = 10.0
"""Shorter than this a regime does not show itself."""
MAX_PERIOD_SECONDS = 3600.0

_USAGE = "vllm-obs demo [FLAGS]"
_DESCRIPTION = """\
Serve without a model: the real scheduler, processes, recorder and Observer, over ranks that only take the time a
model would. A load comes with it, and changes its regime by itself. Ctrl-C ends it all."""


@dataclass(frozen=True)
class DemoOptions:
    """`port` None is 8000, or any free one where that is taken; `inspect_port` None is one near it.

    `regime` is one of REGIMES or all, which are shown in turns of `period` seconds each. The arrivals of a turn
    are the same for the same regime, seed and period.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    inspect_port: int | None = None
    regime: str = ALL
    seed: int = 0
    period: float = 30.0
    ranks: int = 2
    dashboard: bool = False
    dashboard_port: int | None = None
    engines: int = 1
    api_servers: int = 1

    def __post_init__(self) -> None:
        """ConfigError with the number and the limit."""
        for name, least, most in (
            ("port", 0, 65_535),
            ("inspect_port", 0, 65_535),
            ("dashboard_port", 0, 65_535),
            ("seed", 0, 2**63 - 1),
            ("period", MIN_PERIOD_SECONDS, MAX_PERIOD_SECONDS),
            ("ranks", 1, MAX_RANKS),
            ("engines", 1, MAX_ENGINES),
            ("api_servers", 1, MAX_API_SERVERS),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"--{name.replace('_', '-')} {value:g} is not between {least:g} and {most:g}")

    @property
    def regimes(self) -> tuple[str, ...]:
        """The regimes of a round, in order."""
        return tuple(REGIMES) if self.regime == ALL else (self.regime,)


DEMO_FLAGS = (
    Flag("host", "Server", "Address to listen on."),
    Flag("port", "Server", "Port of the API; 0 takes a free one.", parse=whole_number,
         default_text="8000, or a free one where it is taken"),
    Flag("inspect_port", "Server", "Port of the inspector; a free one where it is taken.", parse=whole_number,
         metavar="PORT", default_text="the API's + 1000"),
    Flag("dashboard", "Server", "Serve the inspector's pages too.", kind="switch"),
    Flag("dashboard_port", "Server", "Port of the pages.", parse=whole_number, metavar="PORT",
         default_text="8501, or a free one where it is taken"),
    Flag("api_servers", "Server", "How many API servers share the port; several have a launcher above them.",
         parse=whole_number, metavar="N"),
    Flag("engines", "Engine", "How many engines there are, each with a load of its own.", parse=whole_number,
         metavar="N"),
    Flag("ranks", "Engine", "How many worker processes each engine has.", parse=whole_number, metavar="N"),
    Flag("regime", "Load", "What is shown; all of them one after the other.", choices=(ALL, *REGIMES)),
    Flag("seed", "Load", "Seed of the requests.", parse=whole_number, metavar="N"),
    Flag("period", "Load", "How long each regime lasts.", parse=number, metavar="SECONDS"),
)  # fmt: skip
"""Each sets the field of DemoOptions with its name."""


def demo_options(argv: list[str]) -> DemoOptions:
    """The options on the command line. ConfigError, in one line."""
    parser = Parser("vllm-obs demo", _USAGE, _DESCRIPTION)
    defaults = DemoOptions()
    add_flags(parser, DEMO_FLAGS, {flag.name: getattr(defaults, flag.name) for flag in DEMO_FLAGS})
    refuse_misspelt(argv, parser.options)
    return DemoOptions(**parser.parse(argv))
