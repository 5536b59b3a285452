"""An environment for each system, with pinned versions; torch first and exactly, so that pip takes the same build."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from nmt.logs import say
from nmt.recipe import UserError

TORCH = "torch==2.13.0"
# One set of versions for all, as far as a system does not say otherwise.
CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"


@dataclass(frozen=True)
class Peer:
    """A system: the module that runs it, what it can do, and what is installed for it.

    package:  itself, installed alone, whatever it says it needs
    needed:   what it needs indeed, by name
    """

    module: str
    tasks: tuple[str, ...]
    package: str = ""
    needed: tuple[str, ...] = ()
    needs_torch: bool = True


PEERS = {
    "nmt": Peer("bench.peers.nmt_itself", ("train", "decode", "prepare")),
    "transformers": Peer(
        "bench.peers.transformers_marian",
        ("train", "decode"),
        "transformers==5.23.0",
        (
            "numpy",
            "tokenizers",
            "huggingface_hub",
            "safetensors",
            "regex",
            "pyyaml",
            "tqdm",
            "packaging",
            "typer",
        ),
    ),
    # What its metadata asks for besides (spacy, fasttext, torchcodec, a web server, ...) is not imported in training.
    "eole": Peer(
        "bench.peers.eole_trainer",
        ("train",),
        "eole==0.6.4",
        (
            "huggingface_hub",
            "numpy",
            "pillow",
            "protobuf",
            "pydantic",
            "pyonmttok==1.38.1",
            "pyyaml",
            "regex",
            "sacrebleu",
            "safetensors",
            "tokenizers",
        ),
    ),
    # Its metadata wants a torch older than 2.3; spacy and fasttext are imported, whether they are used or not.
    "opennmt": Peer(
        "bench.peers.opennmt_trainer",
        ("train",),
        "OpenNMT-py==3.5.1",
        (
            "configargparse==1.9.0",
            "fasttext-wheel==0.9.2",
            "numpy",
            "pyahocorasick==2.3.1",
            "pyonmttok==1.38.1",
            "pyyaml",
            "rapidfuzz==3.14.6",
            "regex",
            "sacrebleu",
            "spacy==3.8.18",
        ),
    ),
    # Its metadata wants a numpy older than 2.
    "sockeye": Peer(
        "bench.peers.sockeye_trainer",
        ("train",),
        "sockeye==3.1.34",
        ("numpy", "pyyaml", "sacrebleu"),
    ),
    # Its metadata wants a protobuf older than 3.21, and programs that check its source.
    "joeynmt": Peer(
        "bench.peers.joeynmt_trainer",
        ("train",),
        "joeynmt==2.3.0",
        (
            "importlib_metadata==10.2.0",
            "matplotlib",
            "numpy",
            "packaging",
            "pyyaml",
            "sacrebleu",
            "sentencepiece",
            "subword-nmt==0.3.8",
            "tensorboard",
            "tqdm",
        ),
    ),
    "ctranslate2": Peer(
        "bench.peers.ctranslate2_engine",
        ("decode",),
        "ctranslate2==4.8.5",
        ("numpy", "pyyaml", "setuptools"),
        needs_torch=False,
    ),
    "sentencepiece": Peer("bench.peers.sentencepiece_encoder", ("prepare",), "sentencepiece==0.2.3", needs_torch=False),
}


def cache() -> Path:
    """Where environments are kept: NMT_BENCH_CACHE, or a folder of the user's cache."""
    given = os.environ.get("NMT_BENCH_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "nmt-bench"


def shared_packages() -> str | None:
    """The folder that NMT_BENCH_SHARED names, if it does: all systems then run in this Python and import from there."""
    return os.environ.get("NMT_BENCH_SHARED")


def find_python(name: str) -> str:
    """The interpreter of a system; UserError where it is not installed."""
    if name == "nmt" or shared_packages() is not None:
        return sys.executable
    python = cache() / name / "bin" / "python"
    if not python.exists():
        raise UserError(f"{name} is not installed; install it first: tools/bench/run install {name}")
    return str(python)


def install(name: str) -> None:
    """Make the environment of a system, unless it is there as it should be; UserError where pip fails."""
    peer, folder = PEERS[name], cache() / name
    if not peer.package:
        return
    wanted = "\n".join([TORCH, peer.package, *peer.needed]) + "\n"
    stamp = folder / "bench-stamp"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        say(f"{name} is installed")
        return
    say(f"installing {peer.package} in {folder}")
    _run([sys.executable, "-m", "venv", "--clear", str(folder)], name)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--constraint", str(CONSTRAINTS)]
    if peer.needs_torch:
        _run([*pip, TORCH], name)
    if peer.needed:
        _run([*pip, *peer.needed, *([TORCH] if peer.needs_torch else [])], name)
    _run([*pip, "--no-deps", peer.package], name)
    stamp.write_text(wanted, encoding="utf-8")


def _run(command: list[str], name: str) -> None:
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
        raise UserError(f"{name} cannot be installed; what pip says is above; mend that and install again")
