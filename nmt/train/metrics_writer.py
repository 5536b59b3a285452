"""Metrics of a training: `metrics.jsonl` and TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from nmt.recipe import UserError
from nmt.storage.sealed import write_file


class MetricsWriter:
    """Writes metrics per update to `metrics.jsonl` (one JSON object per line) and TensorBoard."""

    def __init__(self, directory: Path, after_step: int = 0, *, validates_again: bool = False) -> None:
        """Open the files in `directory`, and drop metrics after `after_step`, which a resumed run writes again.

        validates_again: the resumed run validates at `after_step` again, so drop those metrics too

        Raises UserError for a damaged file.
        """
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - slow to import, and not needed by workers

        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "metrics.jsonl"
        content = path.read_bytes() if path.exists() else b""
        lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
        try:
            kept = [line for line in lines if not _is_repeated(json.loads(line), after_step, validates_again)]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path} is damaged; it must have the metrics of this run, one JSON object per line; remove it"
            ) from error
        if (complete := b"".join(kept)) != content:
            write_file(path, complete)  # atomically: the metrics of earlier sessions must survive a full disk
        self._lines = path.open("a", encoding="utf-8")
        self._tensorboard = SummaryWriter(str(directory / "tensorboard"), purge_step=after_step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write metrics by name for an update."""
        self._lines.write(json.dumps({"step": step, **values}) + "\n")
        self._lines.flush()
        for name, value in values.items():
            self._tensorboard.add_scalar(name, value, step)

    def text(self, step: int, name: str, text: str) -> None:
        """Write a Markdown text, such as sample translations, to TensorBoard."""
        self._tensorboard.add_text(name, text, step)

    def close(self) -> None:
        """Flush and close the files."""
        self._lines.close()
        self._tensorboard.close()


def _is_repeated(entry: Mapping[str, float], after_step: int, validates_again: bool) -> bool:
    """Return whether a run that resumes after `after_step` writes these metrics again."""
    is_validation = any(name.startswith("valid/") for name in entry)
    return entry["step"] > after_step or (validates_again and is_validation and entry["step"] == after_step)
