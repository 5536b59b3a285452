"""The line of nmt that is running."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import nmt
from nmt.devices import transfer

PACKAGE = str(Path(nmt.__file__).parent)
ROOT = Path(nmt.__file__).parents[1]


def current_frame() -> Any:
    """Return the innermost frame of nmt outside `nmt.devices.transfer`, or else of a test."""
    first: Any = sys._getframe(1)
    frame = first
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE) and name != transfer.__file__:
            return frame
        frame = frame.f_back
    frame = first
    while frame.f_back is not None and not Path(frame.f_code.co_filename).name.startswith("test_"):
        frame = frame.f_back
    return frame


def function_of(frame: Any) -> str:
    """Return `FILE:FUNCTION` of a frame, with the path within nmt."""
    path = Path(frame.f_code.co_filename)
    function = re.sub(r"(\.<locals>\.<\w+>)+$", "", frame.f_code.co_qualname)  # the function around a comprehension
    return f"{path.relative_to(PACKAGE) if path.is_relative_to(PACKAGE) else path.name}:{function}"


def current_line() -> str:
    frame = current_frame()
    path = Path(frame.f_code.co_filename)
    return f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{frame.f_lineno} ({function_of(frame)})"
