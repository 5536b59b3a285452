"""Replacement of non-finite numbers, which JSON cannot represent."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """Replace NaN and infinite numbers in JSON values with None, which is written as null."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: finite(item) for key, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case _:
            return value
