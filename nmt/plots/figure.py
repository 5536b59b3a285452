"""Pictures as files."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.recipe import UserError
from nmt.storage.sealed import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches; UserError where matplotlib is not installed."""
    try:
        # An extra, which those who draw nothing need not install, nor wait for.
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise UserError("matplotlib is not installed; pictures are drawn by it; pip install 'nmt[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: Path, dots_per_inch: int) -> None:
    """Write a figure as the kind of picture that the end of the name says: png, pdf, svg.

    Raises UserError for another kind, and where the file cannot be written.
    """
    kind, picture = path.suffix.removeprefix("."), BytesIO()
    if not kind:
        raise UserError(f"cannot draw {path}: its name must end like a picture's; take .png")
    try:
        figure.savefig(picture, format=kind, dpi=dots_per_inch)
    except ValueError as error:
        raise UserError(f"cannot draw {path}: {error}; its name must end like a picture's; take .png") from error
    write_file(path, picture.getvalue())
