"""Throughput and latency of translation servers: many clients, each of which sends one line per request.

Every response is compared with the translation of its line by `nmt translate`. Both servers stay loaded; in
alternating rounds, one answers while the other is suspended. The clients run in this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, sleep

import numpy as np

from bench.comparison import TOOLS, Comparison, Measurement, System
from bench.file_comparison import run_command, session_memory, start_command
from bench.ratio import paired_ratio
from nmt.errors import UserError
from nmt.logs import say
from nmt.text.lines import read_lines, require_lines

# Systems and the defaults of their settings. `translate` is `nmt translate`, without a server.
DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "nmt": {},
    "one-call": {"compute_type": "int8", "inter_threads": "2"},
    "translate": {},
}
_NMT = (sys.executable, "-m", "nmt")
_START_SECONDS = 120.0
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True)
class ServingWorkload:
    """A model, a file whose lines are the requests, and the number of concurrent clients that send them."""

    model: Path
    source: Path
    languages: tuple[str, str]
    clients: int = 32
    beam_size: int = 5

    @property
    def search(self) -> list[str]:
        """Options of the search; without a length penalty for greedy search, where `nmt translate` rejects it."""
        beam_size = f"--set=beam_size={self.beam_size}"
        if self.beam_size == 1:
            return [beam_size]
        return [beam_size, "--set=length_penalty=power", "--set=length_alpha=1"]


class _Command:
    """`nmt translate`, startup included."""

    def __init__(self, workload: ServingWorkload, folder: Path) -> None:
        self.measurement = Measurement("translate", {}, {}, 0.0)
        self.lines: list[str] = []
        self._out = folder / "out.txt"
        self._words = [*_NMT, "translate", str(workload.model), str(workload.source), f"-o{self._out}", "--restart"]
        self._words += workload.search

    def run_round(self, timed: bool) -> None:
        """Translate the file once."""
        seconds, _ = run_command(self._words)
        self.lines = list(read_lines(self._out))
        if timed:
            self.measurement.rates.append(len(self.lines) / seconds)


@dataclass
class _Server:
    """A running server with its measurements.

    expected:  the translation of each line
    latencies: seconds from each request to its response
    lost:      number of requests that were answered without a translation
    different: number of translations that differ from the expected ones
    """

    workload: ServingWorkload
    process: subprocess.Popen[bytes]
    port: int
    measurement: Measurement
    expected: Sequence[str]
    latencies: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    lost: int = 0
    different: int = 0

    def run_round(self, timed: bool) -> None:
        """Translate all lines once; raises UserError if the server closes a connection."""
        os.killpg(self.process.pid, signal.SIGCONT)
        lines, start = list(read_lines(self.workload.source)), perf_counter()
        try:
            answers = asyncio.run(_send(lines, self.port, self.workload))
        except (OSError, EOFError) as error:
            name = self.measurement.name
            raise UserError(f"{name} does not answer: {error}; check that it has enough memory, then rerun") from error
        seconds = perf_counter() - start
        self.memory.append(session_memory(self.process.pid))
        os.killpg(self.process.pid, signal.SIGSTOP)
        self.lost += sum(text is None for text, _ in answers)
        self.different += sum(
            text is not None and text != line for (text, _), line in zip(answers, self.expected, strict=True)
        )
        if timed:
            self.measurement.rates.append(len(answers) / seconds)
            self.latencies += [latency for _, latency in answers]

    def finish(self) -> None:
        """Add latencies, memory and errors to the settings of the measurement."""
        quantiles = np.quantile(self.latencies, (0.5, 0.95, 0.99))
        self.measurement.settings.update(
            {
                "latency p50, p95, p99": ", ".join(f"{seconds:.3f}" for seconds in quantiles) + " s",
                "memory": f"{self.memory[0] / 2**20:.0f}, at the end {self.memory[-1] / 2**20:.0f} MiB",
                "lost": str(self.lost),
                "differing from nmt translate": str(self.different),
            }
        )


def compare_servers(workload: ServingWorkload, ours: System, theirs: System, rounds: int) -> Comparison:
    """Translate a file with two servers in alternating rounds, after one untimed round each.

    Raises UserError for an unknown system or setting, or if a server does not start or does not answer.
    """
    for name, settings in (ours, theirs):
        if name not in DEFAULTS:
            raise UserError(f"{name!r} does not support serving; it must be one of {', '.join(DEFAULTS)}; choose one")
        if unknown := settings.keys() - DEFAULTS[name].keys():
            known = ", ".join(DEFAULTS[name]) or "none"
            raise UserError(f"{name} has no setting {min(unknown)!r}; its settings are: {known}; omit it")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command = _Command(workload, folder)
        command.run_round(timed=False)
        require_lines(workload.source, len(command.lines))
        runs: list[_Command | _Server] = []
        for side, (name, settings) in (("ours", ours), ("theirs", theirs)):
            if name == "translate":
                runs.append(command)
            else:
                (folder / side).mkdir()
                server = _running_server(workload, name, settings, command.lines, folder / side)
                runs.append(stack.enter_context(server))
        for number in range(rounds + 1):
            for run in runs:
                run.run_round(timed=number > 0)
            if number > 0:
                first, second = (run.measurement.rates[-1] for run in runs)
                say(f"round {number} of {rounds}: {first:,.1f} and {second:,.1f} lines/s")
        for run in runs:
            if isinstance(run, _Server):
                run.finish()
        one, other = (run.measurement for run in runs)
        return Comparison(one, other, paired_ratio(one.rates, other.rates))


@contextmanager
def _running_server(
    workload: ServingWorkload, name: str, settings: Mapping[str, str], expected: Sequence[str], folder: Path
) -> Iterator[_Server]:
    """Start a server, suspend it, and kill it on exit."""
    settings = {**DEFAULTS[name], **settings}
    if name == "nmt":
        words = [*_NMT, "serve", str(workload.model), "--port=0", *workload.search]
    else:
        export = folder / "export"
        quantization = f"--quantization={settings['compute_type']}"
        run_command([*_NMT, "export", str(workload.model), f"-o{export}", "--to=ctranslate2", quantization])
        program = TOOLS / "bench" / "peers" / "one_call_server.py"
        words = [sys.executable, str(program), str(export), f"beam_size={workload.beam_size}"]
        words += map("=".join, settings.items())
    log = folder / f"{name}.log"
    with log.open("wb") as written:
        process = start_command(words, written)
    try:
        port = _wait_for_port(process, log)
        os.killpg(process.pid, signal.SIGSTOP)
        yield _Server(workload, process, port, Measurement(name, dict(settings), {}, 0.0), expected)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for_port(process: subprocess.Popen[bytes], log: Path) -> int:
    """Return the port that a server logs."""
    deadline = perf_counter() + _START_SECONDS
    while perf_counter() < deadline and process.poll() is None:
        if found := _ADDRESS.search(log.read_text(encoding="utf-8", errors="replace")):
            return int(found[1])
        sleep(0.05)
    output = log.read_text(encoding="utf-8", errors="replace")
    raise UserError(f"the server did not start; fix the cause in its output and rerun:\n{output}")


async def _send(lines: Sequence[str], port: int, workload: ServingWorkload) -> list[tuple[str | None, float]]:
    """Send all lines from concurrent clients; returns each translation, None if there is none, and its latency."""
    answers: list[tuple[str | None, float]] = [(None, 0.0)] * len(lines)
    waiting = iter(enumerate(lines))

    async def send_lines() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for i, line in waiting:  # shared by all clients
            start = perf_counter()
            writer.write(_request(line, workload.languages))
            answers[i] = (await _read_translation(reader), perf_counter() - start)
        writer.close()

    await asyncio.gather(*(send_lines() for _ in range(workload.clients)))
    return answers


def _request(line: str, languages: tuple[str, str]) -> bytes:
    """Return a request to LibreTranslate's API.

    A replacement character is sent as a lone surrogate, which JSON can express, and which the server replaces.
    """
    text = line.replace("\ufffd", "\ud800")
    body = json.dumps({"q": text, "source": languages[0], "target": languages[1]}).encode()
    head = (
        f"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    return f"{head}\r\n\r\n".encode() + body


async def _read_translation(reader: asyncio.StreamReader) -> str | None:
    """Read a response; returns its translation if it has one."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = re.search(r"\r\ncontent-length: *(\d+)", head)
    body = await reader.readexactly(int(length[1]) if length else 0)
    if " 200 " not in head.partition("\r\n")[0]:
        return None
    text: str = json.loads(body)["translatedText"]
    return text
