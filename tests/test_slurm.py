"""The Slurm script: syntax, launch, requeueing and usage errors."""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.waiting import wait_until

SCRIPT = Path(__file__).resolve().parents[1] / "tools" / "slurm-train.sbatch"

# Fake programs of a cluster that log their calls in $LOGS.
SCONTROL = """
echo "$*" >>"$LOGS/scontrol"
[[ $1 == show ]] && printf '%s\\n' node7 node8
exit 0
"""
SRUN = """
echo "$*" >"$LOGS/srun"
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
TORCHRUN = """
printf '%s\\n' "$@" >"$LOGS/torchrun"
env >"$LOGS/environment"
"""
WAIT_FOR_SIGNAL = """
trap 'exit 1' USR1
touch "$LOGS/running"
for _ in {1..600}; do sleep 0.05; done
"""


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, body in (("scontrol", SCONTROL), ("srun", SRUN), ("torchrun", TORCHRUN)):
        write_program(programs / name, body)
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "LOGS": str(tmp_path),
        "SLURM_JOB_ID": "1234567",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_CPUS_PER_TASK": "30",
    }


def write_program(path: Path, body: str) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{body}")
    path.chmod(0o755)


def submit(cluster: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", SCRIPT, *arguments], env=cluster, capture_output=True, text=True, timeout=60)


def logged(cluster: Mapping[str, str], name: str) -> list[str]:
    path = Path(cluster["LOGS"]) / name
    return path.read_text().splitlines() if path.exists() else []


def test_the_script_is_valid_strict_bash() -> None:
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    assert "\nset -euo pipefail\n" in SCRIPT.read_text()


def test_torchrun_is_launched_on_every_node(cluster: dict[str, str]) -> None:
    done = submit(cluster, "recipes/base.toml", "run_dir=a b")
    assert (done.returncode, done.stderr) == (0, "")
    assert logged(cluster, "torchrun") == [
        "--nnodes=2",
        "--nproc-per-node=4",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=node7:{10000 + 1234567 % 20000}",
        "--rdzv-id=1234567-0",
        "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
        "-m",
        "nmt",
        "run",
        "recipes/base.toml",
        "run_dir=a b",
    ]
    (launch,) = logged(cluster, "srun")
    assert launch.startswith("--ntasks-per-node=1 --cpus-per-task=30 --kill-on-bad-exit=1 torchrun ")
    environment = dict(line.split("=", 1) for line in logged(cluster, "environment") if "=" in line)
    assert environment["OMP_NUM_THREADS"] == "8"
    assert (environment["NMT_WATCH_SECONDS"], environment["NMT_TIMEOUT_SECONDS"]) == ("60", "600")
    assert logged(cluster, "scontrol") == ["show hostnames node[7-8]"]


def test_the_time_limit_signal_reaches_torchrun_and_the_job_is_requeued(cluster: dict[str, str]) -> None:
    write_program(Path(cluster["PATH"].split(":")[0]) / "torchrun", WAIT_FOR_SIGNAL)
    with subprocess.Popen(["bash", SCRIPT, "recipe.toml"], env=cluster) as job:
        wait_until((Path(cluster["LOGS"]) / "running").exists)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(timeout=60) == 143
    assert logged(cluster, "scontrol")[1:] == ["requeue 1234567"]


def test_a_failed_job_is_not_requeued(cluster: dict[str, str]) -> None:
    write_program(Path(cluster["PATH"].split(":")[0]) / "torchrun", "exit 3\n")
    assert submit(cluster, "recipe.toml").returncode == 3
    assert logged(cluster, "scontrol") == ["show hostnames node[7-8]"]


def test_a_missing_recipe_or_job_is_a_one_line_usage_error(cluster: dict[str, str]) -> None:
    outside = {name: value for name, value in cluster.items() if name != "SLURM_JOB_ID"}
    for done in (submit(cluster), submit(outside, "recipe.toml")):
        assert done.returncode == 2
        assert done.stderr.startswith("slurm-train: usage: sbatch")
        assert done.stderr.count("\n") == 1
