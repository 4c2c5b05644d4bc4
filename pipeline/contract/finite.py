"""Values as JSON can hold them: it has neither NaN nor infinities."""

from typing import Any


def finite(value: Any) -> Any:
    """The value with null in place of NaN and infinities, at any depth."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))) else value
