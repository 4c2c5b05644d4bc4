"""JSON records that notice damage: the last key holds a hash of all the others, and the bytes have to be the ones we write.

A flipped bit in a number, in a name or in white space, a truncation, an edit by hand: each is found when the record is read.
"""

import json
from typing import Any

from pipeline.contract.hashing import hash_bytes
from pipeline.contract.store import Store

SEAL = "seal"


class Damaged(ValueError):
    """A record that is not what was written; says why in a few words."""


def sealed_bytes(value: dict[str, Any]) -> bytes:
    """The file's content, equal for equal values in the same order of keys."""
    return _dump({**value, SEAL: hash_bytes(_dump(value))})


def unsealed(data: bytes) -> dict[str, Any]:
    """The value of a sealed record.

    Raises:
        Damaged: the bytes are not what `sealed_bytes` made.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise Damaged("is not JSON") from None
    if not isinstance(value, dict) or SEAL not in value:
        raise Damaged("has no seal")
    body = {key: part for key, part in value.items() if key != SEAL}
    if sealed_bytes(body) != data:
        raise Damaged("does not match its seal")
    return body


def write_sealed(store: Store, name: str, value: dict[str, Any]) -> None:
    """Write a record whole, durably."""
    store.write_bytes(name, sealed_bytes(value))


def read_sealed(store: Store, name: str) -> dict[str, Any]:
    """Read a record.

    Raises:
        FileNotFoundError: it is not there.
        Damaged: it is not what was written.
    """
    return unsealed(store.read_bytes(name))


def _dump(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
