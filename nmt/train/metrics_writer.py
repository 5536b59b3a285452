"""Training metrics: `metrics.jsonl` and TensorBoard."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.errors import UserError
from nmt.storage.finite import finite
from nmt.storage.sealed import write_file


class MetricsWriter:
    """Writes metrics per update to `metrics.jsonl` (one JSON object per line, null if not finite) and TensorBoard."""

    def __init__(self, directory: Path, after_step: int = 0, *, validates_again: bool = False) -> None:
        """Open the files in `directory`, and drop metrics after `after_step`, which a resumed run writes again.

        validates_again: the resumed run validates at `after_step` again, so drop those metrics too

        Raises UserError for a damaged file.
        """
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "metrics.jsonl"
        content = path.read_bytes() if path.exists() else b""
        lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
        try:
            remaining = [line for line in lines if not _is_repeated(json.loads(line), after_step, validates_again)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path} is damaged; it must have the metrics of this run, one JSON object per line; remove the file"
            ) from error
        if b"".join(remaining) != content:
            write_file(path, b"".join(remaining))  # atomically: the earlier metrics must survive a full disk
        self._path = path
        self._lines = path.open("a", encoding="utf-8")
        self._tensorboard = _EventFile(directory / "tensorboard", first_step=after_step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write metrics by name for an update; raise UserError if the run directory was moved or deleted."""
        if not self._path.exists() or not os.path.samestat(self._path.stat(), os.fstat(self._lines.fileno())):
            raise UserError(
                f"{self._path} was moved or deleted during training; the run directory must stay in place; restore "
                "it, then rerun to resume from the newest checkpoint"
            )
        self._lines.write(json.dumps(finite({"step": step, **values}), allow_nan=False) + "\n")
        self._lines.flush()
        for name, value in values.items():
            self._tensorboard.write(step, summary=self._tensorboard.summary.scalar(name, value))

    def text(self, step: int, name: str, text: str) -> None:
        """Write Markdown, such as sample translations, to TensorBoard."""
        self._tensorboard.write(step, summary=self._tensorboard.summary.text(name, text))

    def close(self) -> None:
        """Flush and close the files."""
        self._lines.close()
        self._tensorboard.close()


class _EventFile:
    """A TensorBoard file. torch's `SummaryWriter` writes in a thread, which reports errors as tracebacks."""

    def __init__(self, directory: Path, first_step: int) -> None:
        """Open a new file; TensorBoard hides the values of earlier files from `first_step` on."""
        # Slow to import, and not needed by workers.
        from tensorboard.compat.proto import event_pb2  # noqa: PLC0415
        from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415
        from torch.utils.tensorboard import summary  # noqa: PLC0415

        events: Any = event_pb2  # its classes are created at run time
        self._event, self.summary = events.Event, summary
        directory.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time():.9f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (directory / name).open("xb")
        self._records = RecordWriter(self._file)
        self.write(first_step, file_version="brain.Event:2")
        self.write(first_step, session_log=events.SessionLog(status=events.SessionLog.START))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def write(self, step: int, **content: Any) -> None:
        """Write an event."""
        self._records.write(self._event(wall_time=time.time(), step=step, **content).SerializeToString())
        self._file.flush()


def _is_repeated(entry: Mapping[str, float], after_step: int, validates_again: bool) -> bool:
    """Return whether a run that resumes after `after_step` writes these metrics again."""
    is_validation = any(name.startswith("valid/") for name in entry)
    return entry["step"] > after_step or (validates_again and is_validation and entry["step"] == after_step)
