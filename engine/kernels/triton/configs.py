"""How kernels are cut up on each card: tables kept in the repository, one file a card or compute capability."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.kernels.triton.launch import LaunchConfig

CAPABILITIES = (80, 90, 100)
"""Of the cards a table is kept for (A100; H100 and H200; B200); others take that of the nearest card below."""
ABOUT = "about"
"""In a card's file: on what it was measured, and when."""

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Configs:
    """One card's table: kernel name → shape class → configuration."""

    table: dict[str, dict[str, LaunchConfig]]

    def of(self, kernel: str, shape_class: str = "any") -> LaunchConfig:
        """That of a kernel for a class of shapes; the table's `any` where the class has none of its own."""
        classes = self.table[kernel]
        return classes.get(shape_class) or classes["any"]


class ChosenConfigs(NamedTuple):
    """A card's table, and in words which it is."""

    configs: Configs
    reason: str


@cache
def configs_for(capability: int) -> Configs:
    """The table for a compute capability (major * 10 + minor)."""
    return read_configs(FOLDER / f"sm_{_tabled(capability)}.json")


def configs_of_card(card: str, capability: int, folder: Path = FOLDER) -> ChosenConfigs:
    """The table for a card by the driver's name of it: its own over that of its compute capability.

    A card's own has those entries that were measured on it. ConfigError where its file holds no table.
    """
    tabled = _tabled(capability)
    base = configs_for(capability)
    own = folder / card_file(card)
    if own.is_file():
        reason = f"{own.name}, measured on {card}; else sm_{tabled}.json"
        return ChosenConfigs(_over(base, _read_own(own, base)), reason)
    if tabled == capability:
        return ChosenConfigs(base, f"sm_{tabled}.json, of its compute capability")
    return ChosenConfigs(base, f"sm_{tabled}.json, the nearest: there is none for compute capability {capability}")


def card_file(card: str) -> str:
    """The name of a card's file: NVIDIA H200 → nvidia_h200.json."""
    return "_".join(re.findall(r"[a-z0-9]+", card.lower())) + ".json"


def read_configs(path: Path) -> Configs:
    """A table from its file: {kernel: {class: {"sizes": {...}, "num_warps": n, "num_stages": n}}}."""
    table = json.loads(path.read_text())
    return Configs(
        {
            kernel: {name: LaunchConfig(**entry) for name, entry in classes.items()}
            for kernel, classes in table.items()
            if kernel != ABOUT
        }
    )


def table_text(configs: Configs, about: dict[str, str] | None = None) -> str:
    """A table as its file holds it, an entry a line."""
    parts = [f'  "{ABOUT}": {json.dumps(about)}'] if about else []
    parts += [_kernel_text(kernel, classes) for kernel, classes in configs.table.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _kernel_text(kernel: str, classes: dict[str, LaunchConfig]) -> str:
    lines = [f'    "{name}": {json.dumps(vars(config))}' for name, config in classes.items()]
    return f'  "{kernel}": {{\n' + ",\n".join(lines) + "\n  }"


def _tabled(capability: int) -> int:
    known = [one for one in CAPABILITIES if one <= capability]
    return max(known, default=CAPABILITIES[0])


def _read_own(path: Path, base: Configs) -> Configs:
    """A card's own table; every kernel and block size in it is one of the base's."""
    try:
        own = read_configs(path)
        wrong = [
            f"{kernel} {name}"
            for kernel, classes in own.table.items()
            for name, config in classes.items()
            if not _is_like(config, base.table[kernel]["any"])
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: this is no table of kernels: {type(error).__name__}: {error}") from None
    if wrong:
        raise ConfigError(f"{path}: {wrong[0]} has other sizes than the kernel, or a number that is none")
    return own


def _is_like(config: LaunchConfig, known: LaunchConfig) -> bool:
    numbers = (*config.sizes.values(), config.num_warps, config.num_stages)
    is_whole = all(isinstance(number, int) and number > 0 for number in numbers)
    are_powers = is_whole and all(number & (number - 1) == 0 for number in numbers[:-1])
    return are_powers and config.sizes.keys() == known.sizes.keys()


def _over(base: Configs, own: Configs) -> Configs:
    return Configs({kernel: {**classes, **own.table.get(kernel, {})} for kernel, classes in base.table.items()})
