"""The names that a kind of body has for its fields, at any depth."""

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo


@cache
def field_names(kind: type[BaseModel]) -> frozenset[str]:
    """All of them, aliases too; what else stands in the place of a fault was chosen by the client."""
    names: set[str] = set()
    pending, known = [kind], {kind}
    while pending:
        for name, field in pending.pop().model_fields.items():
            names |= {name, *_aliases(field)}
            found = set(_models_in(field.annotation)) - known
            known |= found
            pending += found
    return frozenset(names)


def _aliases(field: FieldInfo) -> list[str]:
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return [choice for choice in choices if isinstance(choice, str)]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
