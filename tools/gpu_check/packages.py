"""Which of the project's dependencies this Python lacks, and how it gets them without a network."""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Of the extra `dev`, what the tests need.
TEST_PACKAGES = ("pytest", "hypothesis")
# The other systems of the ledger's GPU goals, as `bench.environments` pins them, with what they import.
PEER_PACKAGES = (
    "ctranslate2==4.8.5",
    "transformers==5.23.0",
    "eole==0.6.4",
    "huggingface_hub",
    "pillow",
    "protobuf",
    "pyonmttok==1.38.1",
    "pyyaml",
    "regex",
    "setuptools",
    "tokenizers",
    "tqdm",
)
# The versions of torch that this was written for; torch is never installed.
TORCH_VERSIONS = ((2, 11), (2, 13))
_NEVER_INSTALLED = re.compile(r"torch|triton|nvidia.*|cuda.*")
# Minor versions of glibc 2 for which wheels are made; pip must be told each that is good enough.
_GLIBC_OF_WHEELS = (17, 24, 26, 27, 28, 31, 34, 35, 39)


@dataclass(frozen=True)
class Requirement:
    """A dependency and the least version of it."""

    name: str
    least: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """`torch>=2.10`, the one form that pyproject.toml has; ValueError for any other."""
        found = re.fullmatch(r"([A-Za-z0-9_.-]+)>=([0-9.]+)", text)
        if not found:
            raise ValueError(f"{text!r} must look like name>=version")
        return cls(canonical(found[1]), release(found[2]))

    def __str__(self) -> str:
        return f"{self.name}>={'.'.join(map(str, self.least))}"


def canonical(name: str) -> str:
    """A package's name as all of its spellings have it in common."""
    return re.sub(r"[-_.]+", "-", name).lower()


def release(version: str) -> tuple[int, ...]:
    """The numbers at the beginning of a version: (2, 11, 0) for 2.11.0+cu130."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def requirements(pyproject: Path = ROOT / "pyproject.toml") -> list[Requirement]:
    """What nmt and its tests need."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    development = map(Requirement.parse, project["optional-dependencies"]["dev"])
    own = map(Requirement.parse, project["dependencies"])
    return [*own, *(requirement for requirement in development if requirement.name in TEST_PACKAGES)]


def installed(folders: Sequence[str] | None = None) -> dict[str, str]:
    """Package and version of all that this Python has; in some folders alone, where they are given."""
    found = distributions() if folders is None else distributions(path=list(folders))
    versions: dict[str, str] = {}
    for distribution in found:  # the first of several is the one that is imported
        if distribution.metadata["Name"]:
            versions.setdefault(canonical(distribution.metadata["Name"]), distribution.version)
    return versions


def missing(wanted: Sequence[Requirement], present: dict[str, str]) -> list[Requirement]:
    """The requirements that are not there, or too old."""
    return [one for one in wanted if release(present.get(one.name, "")) < one.least]


def torch_problem(present: dict[str, str]) -> str | None:
    """What is unusual about this Python's torch, if anything."""
    version = present.get("torch")
    if version is None:
        return "there is no torch; install it first, for nothing here installs it"
    if not TORCH_VERSIONS[0] <= release(version)[:2] <= TORCH_VERSIONS[1]:
        least, most = (".".join(map(str, one)) for one in TORCH_VERSIONS)
        return f"torch is {version}; this was written for {least} to {most}; results may differ"
    return None


def download_commands(lacking: Sequence[Requirement]) -> list[str]:
    """The commands that make the folder `wheels` on a machine with a network, for this Python and platform."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={here}", *_platforms(), "--dest=wheels"]
    start = ["python3", "-m", "pip", "download", *options]
    names = [str(one) for one in lacking if not _NEVER_INSTALLED.fullmatch(one.name)]
    commands = [shlex.join([*start, *names])] if names else []
    return [*commands, shlex.join([*start, "--no-deps", *PEER_PACKAGES])]


def install(wheels: Path, target: Path, wanted: Sequence[Requirement], present: dict[str, str]) -> str | None:
    """Install a folder's wheels in a folder of their own, but for those that this Python has; pip's words if it fails.

    Never torch, or anything of CUDA: what is there must be kept, so that nothing is resolved either.
    """
    lacking = {one.name for one in missing(wanted, present)}
    files = []
    for file in sorted(wheels.glob("*.whl")):
        name = canonical(file.name.split("-")[0])
        if (name in lacking or name not in present) and not _NEVER_INSTALLED.fullmatch(name):
            files.append(str(file))
    if not files:
        return None
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += [f"--find-links={wheels}", "--no-deps", "--upgrade", f"--target={target}", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr.strip() or f"pip ended with {done.returncode}") if done.returncode else None


def _platforms() -> list[str]:
    machine, (library, version) = platform.machine(), platform.libc_ver()
    if library != "glibc":
        return []
    good = [minor for minor in _GLIBC_OF_WHEELS if (2, minor) <= release(version)[:2]]
    return [f"--platform=manylinux_2_{minor}_{machine}" for minor in good] + [f"--platform=manylinux2014_{machine}"]
