"""`nmt serve`: translation over HTTP."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import MAX_THREADS, Device, missing_option
from nmt.cli.translate_options import MemoryFile, MemoryLimit, SplitSentences
from nmt.engines import (
    Engine,
    TranslatorRequest,
    choose_engine,
    load_scorer,
    load_translator,
    model_settings,
    resolve_fusion,
)
from nmt.errors import CommandError
from nmt.logs import warn
from nmt.recipe import DecodeRecipe, SearchPrecision, ineffective_option, override_own_decode, overrides_by_name
from nmt.serve.access import check_host, check_origin
from nmt.serve.batching import BatchingOptions
from nmt.serve.memory import ServedMemory
from nmt.serve.models import ServedModel, require_aligners
from nmt.serve.server import open_socket, run_server
from nmt.serve.service import ApiKeys, Limits, Service
from nmt.storage.model_metadata import ModelMetadata, read_model_metadata, warn_of_missing_tag, warn_of_run
from nmt.storage.run_folder import find_model
from nmt.storage.sealed import manifest_digest

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.+)", re.DOTALL)

_MODELS = "Model directories, checkpoints or run directories, as PATH or NAME=PATH (default name: SRC-TGT, e.g. en-de)."
_HOST = "Address to listen on; 0.0.0.0 is all IPv4 addresses of this machine."
_API_KEYS = "File of API keys, one per line; POST requests must then include one of them (default: no key is required)."
_CORS = "Origin of web pages that may use the server, such as https://example.org; '*' allows all. Repeatable."
_ALLOW_HOST = (
    "Host name in URLs of the server, besides localhost and --host; '*' allows all, which is the default unless --host "
    "is a loopback address. Repeatable."
)
_SET = "An option of the decode section for all models: beam_size=8, no_repeat_ngram=4, ... Repeatable."
_MAX_DELAY = "Maximum seconds that a line waits for a batch to fill."
_PROCESSES = "Batches that CTranslate2 translates in parallel; 0 is one per core on a CPU, one on a GPU."
_MAX_SECONDS = "Timeout for receiving a request, and for answering it, in seconds."


@dataclass(frozen=True)
class Serve:
    """Serve translations over HTTP: a web page, the API of LibreTranslate, and a native API under /v1.

    On SIGTERM, SIGUSR1, SIGHUP or Ctrl-C, the server answers all pending requests and exits with status 0.
    """

    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help=_MODELS)]
    host: Annotated[str, typer.Option(help=_HOST)] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 selects a free one.")] = 5000
    api_keys: Annotated[Path | None, typer.Option(metavar="FILE", help=_API_KEYS)] = None
    cors: Annotated[list[str] | None, typer.Option(metavar="ORIGIN", parser=check_origin, help=_CORS)] = None
    allow_host: Annotated[list[str] | None, typer.Option(metavar="NAME", parser=check_host, help=_ALLOW_HOST)] = None
    batch_lines: Annotated[int, typer.Option(min=1, help="Maximum lines per batch.")] = BatchingOptions.batch_size
    max_delay: Annotated[float, typer.Option(min=0.0, max=60.0, help=_MAX_DELAY)] = BatchingOptions.max_delay
    queue_lines: Annotated[int, typer.Option(min=1, help="Maximum lines in each queue.")] = BatchingOptions.queue_size
    max_bytes: Annotated[int, typer.Option(min=1, help="Maximum bytes per request.")] = Limits.body_bytes
    max_characters: Annotated[int, typer.Option(min=1, help="Maximum characters per request.")] = Limits.characters
    max_lines: Annotated[int, typer.Option(min=1, help="Maximum lines per request.")] = Limits.lines
    max_seconds: Annotated[float, typer.Option(min=0.001, max=86_400.0, help=_MAX_SECONDS)] = Limits.seconds
    log_text: Annotated[bool, typer.Option("--log-text", help="Log texts and translations to stderr.")] = False
    split_sentences: SplitSentences = False
    settings: Annotated[list[str] | None, typer.Option("--set", help=_SET)] = None
    processes: Annotated[int, typer.Option(min=0, max=MAX_THREADS, help=_PROCESSES)] = 0
    memory: MemoryFile = None
    memory_limit: MemoryLimit = None
    device: Device = "auto"
    precision: Annotated[SearchPrecision, typer.Option(help="As for nmt translate.")] = "auto"
    engine: Annotated[Engine, typer.Option(help="As for nmt translate.")] = "auto"

    def run(self) -> None:
        """Check the options, load the models, and serve requests until a signal."""
        if self.max_lines > self.queue_lines:
            raise CommandError(
                f"a request may have {self.max_lines} lines (--max-lines), but a queue only {self.queue_lines} "
                "(--queue-lines); increase --queue-lines, or reduce --max-lines"
            )
        if self.memory is None and self.memory_limit is not None:
            raise missing_option("--memory-limit", "--memory")
        models = _find_models(self.models)
        keys = None if self.api_keys is None else ApiKeys(self.api_keys)
        bound = open_socket(self.host, self.port)
        is_public = not ipaddress.ip_address(bound.getsockname()[0]).is_loopback
        if is_public and keys is None:
            warn(f"{self.host} is reachable from other machines without an API key; see --api-keys")
        overrides = list(self.settings or ())
        if self.split_sentences:
            overrides.append("split_sentences=true")
        search_options = _search_options([model.metadata.decode for model in models], overrides)
        served = [self._load(model, decode) for model, decode in zip(models, search_options, strict=True)]
        if self.processes and all(model.description.startswith("torch") for model in served):
            raise CommandError(
                "--processes has no effect with torch; leave out --processes, or use --engine ctranslate2"
            )
        require_aligners(served, overrides)
        limits = Limits(self.max_bytes, self.max_characters, self.max_lines, self.max_seconds)
        default_hosts = ["*"] if is_public else []
        hosts = [self.host.lower(), *(self.allow_host or default_hosts)]
        run_server(Service(served, limits, keys, logs_text=self.log_text), bound, self.cors or (), hosts)

    def _load(self, model: _FoundModel, decode: DecodeRecipe) -> ServedModel:
        """Load a model; `decode` has the defaults of requests."""
        directory, metadata = model.directory, model.metadata
        decode = resolve_fusion(decode)
        digest = manifest_digest(directory)
        warn_of_run(model.path, metadata)
        warn_of_missing_tag(model.path, metadata, decode.tag)
        request = TranslatorRequest([directory], decode, self.device, self.processes, scores=True)
        choice = choose_engine(self.engine, self.precision, request, required=False)
        memory = None
        if self.memory is not None:
            model_and_engine, _ = model_settings([directory], decode, choice)
            memory = ServedMemory(self.memory, self.memory_limit, model_and_engine)
        return ServedModel(
            model.name,
            (metadata.src_lang, metadata.tgt_lang),
            decode,
            load_translator(request, choice),
            partial(load_scorer, directory, digest, self.device, decode.tag),
            BatchingOptions(self.batch_lines, self.queue_lines, self.max_delay),
            f"{choice.engine}, {choice.precision}",
            memory,
        )


@dataclass(frozen=True)
class _FoundModel:
    """A model to serve. path: as given; directory: found only once, because a run may save newer checkpoints"""

    name: str
    path: Path
    directory: Path
    metadata: ModelMetadata


def _find_models(arguments: Sequence[str]) -> list[_FoundModel]:
    """Find the models before the first one is loaded; raises CommandError if two have the same name."""
    found: dict[str, _FoundModel] = {}
    for given in arguments:
        named = None if Path(given).exists() else _NAMED.fullmatch(given)
        path = Path(named[2] if named else given)
        directory = find_model(path)
        metadata = read_model_metadata(directory)
        name = named[1] if named else f"{metadata.src_lang}-{metadata.tgt_lang}"
        if name in found:
            problem = f"{found[name].path} and {path} are both named {name!r}; names must differ"
            raise CommandError(f"{problem}; give NAME=PATH")
        found[name] = _FoundModel(name, path, directory, metadata)
    return list(found.values())


def _search_options(models: Sequence[DecodeRecipe], settings: Sequence[str]) -> list[DecodeRecipe]:
    """Return the search options of each model with overrides, which are the defaults of requests.

    models: their own options

    Raises BadParameter for an override without effect on any model.
    """
    chosen = [override_own_decode(decode, settings) for decode in models]
    for name in sorted(overrides_by_name(settings), key=lambda name: name != "n_best"):  # its reason covers mbr_metric
        problems = [_lack_of_effect(name, decode) for decode in chosen]
        if all(problems):
            raise typer.BadParameter(f"--set {problems[0]}")
    return chosen


def _lack_of_effect(name: str, decode: DecodeRecipe) -> str:
    """Return why an option has no effect on the requests to a model, and what to do; "" if it has one."""
    if name == "alignments":
        return "alignments has no effect, because requests set it; leave out alignments"
    if name == "n_best" and (decode.mbr_metric == "none" or decode.n_best == 1):
        problem = "n_best has no effect without mbr_metric, because requests set it; mbr_metric needs n_best >= 2"
        return f"{problem}; correct it, or leave out n_best"
    ineffective = ineffective_option([name], decode, has_ensemble=False, needs_alignments=True)
    return f"{ineffective[1]}; add that, or leave out {ineffective[0]}" if ineffective else ""
