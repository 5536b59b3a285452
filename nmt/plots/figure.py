"""Matplotlib figures in a common style."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nmt.errors import CommandError, UserError
from nmt.logs import counted, warn
from nmt.storage.sealed import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colors that are distinguishable with every type of color vision (Okabe and Ito 2008).
BLUE, ORANGE, GREEN, GRAY = "#0072b2", "#d55e00", "#009e73", "#8c8c8c"
PALETTE = (BLUE, ORANGE, GREEN, "#cc79a7", "#56b4e9", "#e69f00", "#000000")

PLOT_MARK = b"Drawn by nmt with Matplotlib"
"""Mark of png, svg, pdf, eps and ps files of `save_figure`."""
_KEYS_OF_MARK = {"png": "Software", "svg": "Creator", "pdf": "Creator", "eps": "Creator", "ps": "Creator"}


def new_figure(width: float, height: float) -> Figure:
    """Create an empty figure, sized in inches; raises UserError without matplotlib."""
    try:
        # An optional dependency, and slow to import.
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise UserError("plots need matplotlib, which is not installed; run: pip install 'nmt[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def style_axes(axes: Axes, title: str, grid: Literal["both", "x"] = "both") -> None:
    """Set the title, and draw a light grid behind the data and only the left and bottom spines."""
    axes.set_title(title, loc="left", fontsize=10, parse_math=False)
    axes.grid(axis=grid, color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend_label(name: str) -> str:
    """Return the label of a name: legends omit labels that begin with _, and show text between $ as a formula."""
    label = name.replace("$", r"\$")
    return f"\u200b{label}" if label.startswith("_") else label  # zero-width space


def require_drawable(path: Path) -> None:
    """Raise the error of `save_figure` early: UserError without matplotlib, CommandError for an unknown extension."""
    known = new_figure(1.0, 1.0).canvas.get_supported_filetypes().keys() - {"pgf"}  # which needs LaTeX
    if path.suffix.removeprefix(".") not in known:
        raise CommandError(f"cannot draw {path}: the name needs an extension such as .png")


def save_figure(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write a figure in the format of the file extension, such as png, pdf or svg.

    Warns of characters without a glyph. Raises CommandError for an unknown extension and UserError for an unwritable
    file.
    """
    require_drawable(path)
    image = BytesIO()
    extension = path.suffix.removeprefix(".")
    metadata = {_KEYS_OF_MARK[extension]: PLOT_MARK.decode()} if extension in _KEYS_OF_MARK else None
    with _summarizing_missing_glyphs(path):
        figure.savefig(image, format=extension, dpi=dpi, metadata=metadata)
    write_file(path, image.getvalue())


@contextmanager
def _summarizing_missing_glyphs(path: Path) -> Iterator[None]:
    """Replace Matplotlib's warnings of missing glyphs, one per character, with one line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "Glyph ", UserWarning)
        yield
    missing = {str(warning.message) for warning in caught if str(warning.message).startswith("Glyph ")}
    for other in caught:
        if str(other.message) not in missing:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    if missing:
        warn(
            f"the font of {path} lacks {counted(len(missing), 'character')}, drawn as boxes; add a font that has them "
            "to font.family in matplotlibrc, such as font.family: DejaVu Sans, Noto Sans CJK JP"
        )
