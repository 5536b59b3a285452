"""One virtual environment per system, with pinned versions.

torch is installed first and pinned exactly, to give every system the same build.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nmt.errors import UserError
from nmt.logs import say

TORCH = "torch==2.13.0"
# Versions of all packages that a system does not pin itself.
CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"


@dataclass(frozen=True)
class Peer:
    """A system: the module that runs it, its supported tasks, and its packages.

    package:      the system itself, installed without dependencies
    dependencies: packages it imports, separated by spaces
    options:      its own settings by task, separated by spaces; `train.` stands for all names that start with it
    """

    module: str
    tasks: tuple[str, ...]
    package: str = ""
    dependencies: str = ""
    needs_torch: bool = True
    options: Mapping[str, str] = field(default_factory=dict)


PEERS = {
    "nmt": Peer(
        "bench.peers.nmt_system",
        ("train", "decode", "prepare", "learn"),
        options={"train": "compile train.", "decode": "decode.", "learn": "init train. model."},
    ),
    "transformers": Peer(
        "bench.peers.transformers_marian",
        ("train", "decode", "learn"),
        "transformers==5.23.0",
        "numpy tokenizers huggingface_hub safetensors regex pyyaml tqdm packaging typer",
        options={"train": "attn compile batches", "decode": "attn", "learn": "attn batches"},
    ),
    # Training does not import its other declared dependencies (spacy, fasttext, torchcodec, a web server, ...).
    "eole": Peer(
        "bench.peers.eole_trainer",
        ("train", "learn"),
        "eole==0.6.4",
        "huggingface_hub numpy pillow protobuf pydantic pyonmttok==1.38.1 pyyaml regex sacrebleu safetensors "
        "tokenizers",
        options=dict.fromkeys(("train", "learn"), "batches bucket_size num_workers torch_compile"),
    ),
    # Declares torch < 2.3. Imports spacy and fasttext even if they are not used.
    "opennmt": Peer(
        "bench.peers.opennmt_trainer",
        ("train",),
        "OpenNMT-py==3.5.1",
        "configargparse==1.9.0 fasttext-wheel==0.9.2 numpy pyahocorasick==2.3.1 pyonmttok==1.38.1 pyyaml "
        "rapidfuzz==3.14.6 regex sacrebleu spacy==3.8.18",
        options={"train": "bucket_size num_workers"},
    ),
    # Declares numpy < 2.
    "sockeye": Peer(
        "bench.peers.sockeye_trainer",
        ("train",),
        "sockeye==3.1.34",
        "numpy pyyaml sacrebleu",
        options={"train": "batch_type bucket_width"},
    ),
    # Declares protobuf < 3.21 and linters.
    "joeynmt": Peer(
        "bench.peers.joeynmt_trainer",
        ("train",),
        "joeynmt==2.3.0",
        "importlib_metadata==10.2.0 matplotlib numpy packaging pyyaml sacrebleu sentencepiece subword-nmt==0.3.8 "
        "tensorboard tqdm",
    ),
    "ctranslate2": Peer(
        "bench.peers.ctranslate2_engine",
        ("decode",),
        "ctranslate2==4.8.5",
        "numpy pyyaml setuptools",
        needs_torch=False,
        options={"decode": "compute_type inter_threads"},
    ),
    "sentencepiece": Peer("bench.peers.sentencepiece_encoder", ("prepare",), "sentencepiece==0.2.3", needs_torch=False),
}


def cache() -> Path:
    """Folder of the environments: NMT_BENCH_CACHE or `nmt-bench` in the user's cache."""
    given = os.environ.get("NMT_BENCH_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "nmt-bench"


def shared_packages() -> str | None:
    """Package folder NMT_BENCH_SHARED, if set: all systems then use this interpreter and import from that folder."""
    return os.environ.get("NMT_BENCH_SHARED")


def inherited_environment() -> dict[str, str]:
    """Return the environment variables for a measured process.

    Python may cache compiled modules, as after any installation. Otherwise each start of nmt compiles its source, but
    not that of installed packages.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def find_python(name: str) -> str:
    """Return the interpreter of a system; raises UserError if the system is not installed."""
    if name == "nmt" or shared_packages() is not None:
        return sys.executable
    python = cache() / name / "bin" / "python"
    if not python.exists():
        raise UserError(f"{name} is not installed; install it first: tools/bench/run install {name}")
    return str(python)


def install(name: str) -> None:
    """Create the environment of a system unless it is up to date; raises UserError if pip fails."""
    peer, folder = PEERS[name], cache() / name
    if not peer.package:
        return
    torch, dependencies = [TORCH] if peer.needs_torch else [], peer.dependencies.split()
    contents = "\n".join([*torch, peer.package, *dependencies]) + "\n"
    stamp = folder / "bench-stamp"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == contents:
        say(f"{name} is installed")
        return
    say(f"installing {peer.package} in {folder}")
    _run([sys.executable, "-m", "venv", "--clear", str(folder)], name)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--constraint", str(CONSTRAINTS)]
    if torch:
        _run([*pip, *torch], name)
    if dependencies:
        _run([*pip, *dependencies, *torch], name)  # torch again, to keep this version
    _run([*pip, "--no-deps", peer.package], name)
    stamp.write_text(contents, encoding="utf-8")


def _run(command: list[str], name: str) -> None:
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
        raise UserError(f"installation of {name} failed; the output of pip is above; fix the cause, then rerun")
