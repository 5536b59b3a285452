"""Dependencies that this Python lacks, and their installation without a network."""

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

# Packages of the extra `dev` that the tests need.
TEST_PACKAGES = ("pytest", "hypothesis")
# The other systems of the GPU goals, pinned as in `bench.environments`, and their dependencies.
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
# Lowest and highest torch version that the checks are written for; torch is never installed.
TORCH_VERSIONS = ((2, 11), (2, 13))
_NEVER_INSTALLED = re.compile(r"torch|triton|nvidia.*|cuda.*")
# Minor versions of glibc 2 with a manylinux tag; pip needs every compatible tag.
_GLIBC_OF_WHEELS = (17, 24, 26, 27, 28, 31, 34, 35, 39)


@dataclass(frozen=True)
class Requirement:
    """A dependency and its minimum version."""

    name: str
    minimum: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Parse `torch>=2.10`, the only form in pyproject.toml; raises ValueError for others."""
        found = re.fullmatch(r"([A-Za-z0-9_.-]+)>=([0-9.]+)", text)
        if not found:
            raise ValueError(f"{text!r} must have the form name>=version")
        return cls(canonical(found[1]), release(found[2]))

    def __str__(self) -> str:
        return f"{self.name}>={'.'.join(map(str, self.minimum))}"


def canonical(name: str) -> str:
    """Normalize a package name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def release(version: str) -> tuple[int, ...]:
    """Release numbers of a version: (2, 11, 0) for 2.11.0+cu130."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def requirements(pyproject: Path = ROOT / "pyproject.toml") -> list[Requirement]:
    """Requirements of nmt and its tests."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    development = map(Requirement.parse, project["optional-dependencies"]["dev"])
    own = map(Requirement.parse, project["dependencies"])
    return [*own, *(requirement for requirement in development if requirement.name in TEST_PACKAGES)]


def installed(folders: Sequence[str] | None = None) -> dict[str, str]:
    """Versions of all installed packages, or of those in the given folders."""
    found = distributions() if folders is None else distributions(path=list(folders))
    versions: dict[str, str] = {}
    for distribution in found:  # the first of several is imported
        if distribution.metadata["Name"]:
            versions.setdefault(canonical(distribution.metadata["Name"]), distribution.version)
    return versions


def missing(required: Sequence[Requirement], present: dict[str, str]) -> list[Requirement]:
    """Return the requirements that are missing or too old."""
    return [one for one in required if release(present.get(one.name, "")) < one.minimum]


def torch_problem(present: dict[str, str]) -> str | None:
    """Return a warning if torch is missing or outside `TORCH_VERSIONS`."""
    version = present.get("torch")
    if version is None:
        return "torch is not installed; install it first"
    if not TORCH_VERSIONS[0] <= release(version)[:2] <= TORCH_VERSIONS[1]:
        lowest, highest = (".".join(map(str, one)) for one in TORCH_VERSIONS)
        return f"torch is {version}; the checks are written for {lowest} to {highest}; results may differ"
    return None


def download_commands(required: Sequence[Requirement]) -> list[str]:
    """Commands that download wheels into the folder `wheels`, for this Python and platform; they need a network."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={here}", *_platforms(), "--dest=wheels"]
    start = ["python3", "-m", "pip", "download", *options]
    names = [str(one) for one in required if not _NEVER_INSTALLED.fullmatch(one.name)]
    commands = [shlex.join([*start, *names])] if names else []
    return [*commands, shlex.join([*start, "--no-deps", *PEER_PACKAGES])]


def install(wheels: Path, target: Path, required: Sequence[Requirement], present: dict[str, str]) -> str | None:
    """Install wheels of missing or outdated packages into a folder; returns the error of pip, if any.

    Never installs torch or CUDA packages, and does not resolve dependencies, which could replace them.
    """
    outdated = {one.name for one in missing(required, present)}
    files = []
    for file in sorted(wheels.glob("*.whl")):
        name = canonical(file.name.split("-")[0])
        if (name in outdated or name not in present) and not _NEVER_INSTALLED.fullmatch(name):
            files.append(str(file))
    if not files:
        return None
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += [f"--find-links={wheels}", "--no-deps", "--upgrade", f"--target={target}", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr.strip() or f"pip failed with exit status {done.returncode}") if done.returncode else None


def _platforms() -> list[str]:
    machine, (library, version) = platform.machine(), platform.libc_ver()
    if library != "glibc":
        return []
    tags = [minor for minor in _GLIBC_OF_WHEELS if (2, minor) <= release(version)[:2]]
    return [f"--platform=manylinux_2_{minor}_{machine}" for minor in tags] + [f"--platform=manylinux2014_{machine}"]
