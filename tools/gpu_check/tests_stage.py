"""Runs all tests marked `gpu` with pytest; in a dry run, those that can run on a simulated GPU."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from bench.worker import end_with_parent

from gpu_check.outcome import Results
from gpu_check.packages import ROOT
from gpu_check.settings import NO_GPU, Settings

_MARK = "pytest.mark.gpu"
# A dry run skips the slowest tests: compilation, 16-bit precisions and most attention sizes.
_SMALL = ["-k", "not 16 and not compiled and not (output and not 64)"]


@dataclass
class _Counts:
    """Results of the cases of one test function."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def run(settings: Settings, results: Results, _part: str) -> None:
    """Run the tests and add one check per test function."""
    report = settings.folder("logs") / "tests.xml"
    report.unlink(missing_ok=True)
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if _MARK in path.read_text("utf-8")]
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command += [*settings.pick([], _SMALL), *files]
    done = subprocess.run(command, cwd=ROOT, check=False, preexec_fn=end_with_parent)
    if done.returncode > 1 or not report.exists():
        raise SystemExit(f"pytest failed with exit status {done.returncode}")
    for name, counts in sorted(_read(report).items()):
        row = (name, "all cases pass")
        if counts.failed or counts.passed:
            actual = f"{counts.passed} passed, {len(counts.failed)} failed, {len(counts.skipped)} skipped"
            first = "".join(f"; {case}" for case in counts.failed[:3])
            results.check(*row, f"{actual} on {settings.device}{first}", not counts.failed)
        else:
            results.not_measured(*row, counts.skipped[0] if settings.on_gpu else NO_GPU)


def _read(report: Path) -> dict[str, _Counts]:
    """Count the cases of each test function in a JUnit XML report."""
    found: dict[str, _Counts] = defaultdict(_Counts)
    # Trusted XML, just written by pytest.
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = case.get("name", "")
        function, module = name.partition("[")[0], case.get("classname", "").rpartition(".")[2]
        counts = found[f"{module}: {function.removeprefix('test_').replace('_', ' ')}"]
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            counts.failed.append(name)
        elif skip is not None:
            counts.skipped.append(skip.get("message", ""))
        else:
            counts.passed += 1
    return found
