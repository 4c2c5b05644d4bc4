"""Typed, strict manifests: an unknown key fails and names the nearest known one."""

import difflib
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.contract.errors import ManifestError


class Strict(BaseModel):
    """Base of every manifest section: frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


Section = TypeVar("Section", bound=Strict)


def parse(model: type[Section], data: Any, source: str) -> Section:
    """Validate `data` as `model`.

    Raises:
        ManifestError: naming the source, the key, the value and the rule; for an unknown key the nearest known one.
    """
    if not isinstance(data, dict):
        raise ManifestError(f"{source}: {data!r} is not a mapping of keys to values; see 'pipeline shards show NAME' for the form")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ManifestError(f"{source}: {_first_problem(model, error)}") from None


def _first_problem(model: type[Strict], error: ValidationError) -> str:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = sorted(known_keys(model))
        return f"unknown key {key!r}; {nearest(key, known)}"
    rule = problem["msg"].removeprefix("Value error, ")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{key}={problem['input']!r}: {rule}{more}"


def nearest(key: str, known: list[str]) -> str:
    """Say which known key was probably meant."""
    leaves = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    close = close or [leaves[leaf] for leaf in difflib.get_close_matches(key.rsplit(".", 1)[-1], list(leaves), n=1, cutoff=0.5)]
    return f"the nearest known key is {close[0]!r}" if close else f"known keys are {', '.join(known)}"


def known_keys(model: type[Strict], prefix: str = "") -> set[str]:
    """Every dotted key that `model` accepts."""
    keys: set[str] = set()
    for name, field in model.model_fields.items():
        keys.add(prefix + name)
        for section in _sections(field.annotation):
            keys |= known_keys(section, f"{prefix}{name}.")
    return keys


def _sections(annotation: Any) -> list[type[Strict]]:
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        return [annotation]
    return [section for part in get_args(annotation) for section in _sections(part)]
