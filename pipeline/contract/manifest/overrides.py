"""`--set key=value`: dotted keys over a manifest's own structure, values read as YAML."""

import copy
from collections.abc import Iterable
from typing import Any

import yaml

from pipeline.contract.errors import ManifestError
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.manifest.strict import known_keys, nearest
from pipeline.contract.manifest.student import StudentManifest

Overrides = dict[str, Any]


def read_overrides(assignments: Iterable[str]) -> Overrides:
    """Parse `key=value` strings; a later one wins.

    Raises:
        ManifestError: for an assignment without '=' or a value that is not YAML.
    """
    overrides: Overrides = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise ManifestError(f"--set {assignment!r}: has no key=value form; write for example --set steps=4")
        overrides[key.strip()] = _read_value(key, value)
    return overrides


def _read_value(key: str, text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ManifestError(f"--set {key}={text!r}: is not a YAML value ({str(error).splitlines()[0]}); quote it") from None
    return _number(value) if isinstance(value, str) else value


def _number(text: str) -> str | float:
    """YAML 1.1 reads 1e-4 as text; a user means the number."""
    try:
        return float(text)
    except ValueError:
        return text


def merge(base: dict[str, Any], *layers: dict[str, Any]) -> dict[str, Any]:
    """Deep-merge mappings; a later layer wins; lists are replaced whole."""
    merged = copy.deepcopy(base)
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = merge(merged[key], value) if both else copy.deepcopy(value)
    return merged


def nested(overrides: Overrides) -> dict[str, Any]:
    """Turn dotted keys into nested mappings."""
    tree: dict[str, Any] = {}
    for dotted, value in overrides.items():
        *sections, leaf = dotted.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
            if not isinstance(node, dict):
                raise ManifestError(f"--set {dotted}={value}: {section}={node} was set as a whole beside it; give one of the two")
        node[leaf] = value
    return tree


def split_by_owner(overrides: Overrides) -> tuple[Overrides, Overrides]:
    """Deal overrides to the shard (teacher., documents., targets., cache., engine) and to the student (the rest).

    Raises:
        ManifestError: for a key that neither knows, naming the nearest one.
    """
    shard_keys = known_keys(ShardManifest) - {"name", "about", "student"}
    student_keys = known_keys(StudentManifest)
    for key in overrides:
        if _in_mapping(key) not in shard_keys | student_keys:
            raise ManifestError(f"--set {key}: unknown key {key!r}; {nearest(key, sorted(shard_keys | student_keys))}")
    shard = {key: value for key, value in overrides.items() if _in_mapping(key) in shard_keys}
    return shard, {key: value for key, value in overrides.items() if key not in shard}


def _in_mapping(key: str) -> str:
    """The known key that `key` is an entry of: packages are named by the user."""
    return "documents.packages" if key.startswith("documents.packages.") else key
