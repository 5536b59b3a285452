"""Command line of `tools/bench/run`."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

from bench.comparison import Comparison, System, compare
from bench.environments import PEERS, cache, install
from bench.file_comparison import DEFAULTS, LOADED_DEFAULTS, FileWorkload, compare_files, compare_loaded
from bench.goals import BY_NAME, GOALS
from bench.learning import draw, learn, summarize
from bench.ledger import DEFAULT_FOLDER, add_entries, comparison_entry, read_ledger, value_entry, write_results
from bench.serving import ServingWorkload, compare_servers
from bench.text import prepare_text, text_recipe, vocabulary_size
from bench.workload import Learning, Shape, Workload
from nmt.errors import UserError
from nmt.logs import counted, print_line, say
from nmt.plots.figure import require_drawable
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.run_folder import find_model
from nmt.text.lines import count_lines, require_lines, require_same_length

SHAPES = {
    "tiny": Shape(4, 4, 128, 256, 4, 0.3),
    "base": Shape(),
    "big": Shape(d_model=1024, d_ff=4096, num_heads=16, dropout=0.3),
    "small": Shape(3, 3, 256, 1024, 4, 0.1),
}

# Fields of the workload that the settings of a system can override, by task.
FIELDS: dict[str, tuple[str, ...]] = {
    "train": ("device", "precision", "threads", "warm_up", "batch_tokens", "updates", "label_smoothing"),
    "decode": (
        *("device", "precision", "threads", "warm_up"),
        *("beam_size", "batch_sentences", "output_tokens", "num_sentences"),
    ),
    "prepare": ("threads", "warm_up"),
    "learn": ("device", "precision", "threads", "batch_tokens", "label_smoothing", "beam_size", "batch_sentences"),
}
# Values of settings that are neither numbers nor checked by the system itself.
CHOICES: dict[str, tuple[str, ...]] = {
    "compile": ("true", "false"),
    "torch_compile": ("true", "false"),
    "batches": ("sorted", "random"),
}

SYSTEMS = "\n".join(f"  {name:<15}{', '.join(peer.tasks)}" for name, peer in PEERS.items())

EXAMPLES = f"""\
examples:
  tools/bench/run install transformers ctranslate2 eole
  tools/bench/run data --data FOLDER              raw text such as Multi30k: train.en, train.de, val.en, ...
  tools/bench/run train nmt:precision=bf16 eole:precision=bf16 --goal train-cpu-eole-bf16
  tools/bench/run decode nmt:precision=bf16 ctranslate2:compute_type=float16 --device cuda --goal decode-gpu-batch32
  tools/bench/run file nmt ctranslate2 --model runs/NAME --source FILE --ref FILE --goal file-int8
  tools/bench/run serve nmt one-call --model runs/NAME --source FILE --goal serve-one-call
  tools/bench/run learn nmt transformers nmt:model.norm_order=pre eole --results learning.json
  tools/bench/run record train-cpu-linear 0.62 --command 'nmt bench train base ...' --evidence train.json

A system is NAME:setting=value,... with fields of the workload (precision, threads, batch_tokens, batch_sentences,
...), options of the system (see its module in tools/bench/peers) and environment VARIABLES. `file` and `serve`
accept only their own settings: those in `file --help`, and compute_type and inter_threads of one-call. Measure only on
an idle machine. Environments are created in NMT_BENCH_CACHE, by default in the user's cache.

systems and their tasks:
{SYSTEMS}

All commands except install, data and learn update tools/bench/RESULTS.md and results.json.

exit status: 0 success, 1 failed, 2 invalid command line
"""


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    # Two rounds, to compute an interval.
    lowest = {"rounds": 1 if options.command == "learn" else 2, "warm_up": 0 if options.command == "file" else 1}
    for name, value in vars(options).items():
        if type(value) is int and value < (least := lowest.get(name, 1)):
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the measured processes, too
    try:
        if "ledger" in options:
            read_ledger(options.ledger)  # an unreadable one is an error before the measurement
        match options.command:
            case "install":
                for name in options.peers:
                    install(name)
            case "data":
                languages = {"src_lang": options.src_lang, "tgt_lang": options.tgt_lang}
                prepare_text(text_recipe(options.data, options.folder, **languages, vocab_size=options.vocab_size))
                say(f"wrote {options.folder}")
            case "record":
                _record(options)
            case "ledger":
                _update_ledger(options)
            case "learn":
                _learn(options)
            case "file":
                _compare_files(options)
            case "serve":
                _compare_servers(options)
            case _:
                _compare(options, arguments)
    except UserError as error:
        print_line(f"bench: {error}")
        return 1
    return 0


def _compare(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Compare the speed of a task and add the result to the ledger."""
    ours, theirs = (_find_system(options.command, text) for text in (options.ours, options.theirs))
    folder: Path = options.folder
    workload = Workload(options.command, str(folder.absolute()), vocabulary_size(folder), SHAPES[options.shape])
    names = {field.name for field in fields(workload)} - {"folder", "shape"}
    workload = replace(
        workload, **{key: value for key, value in vars(options).items() if key in names and value is not None}
    )
    comparison = compare(workload, ours, theirs, options.rounds)
    kept, words = list[str](), iter(arguments)
    for word in words:
        option, equals, _ = word.partition("=")
        if option not in ("--folder", "--ledger", "--note"):  # the command in the ledger has no local paths
            kept.append(word)
        elif not equals:
            next(words)
    work = {key: value for key, value in asdict(workload).items() if key not in ("folder", "options")}
    _publish(options, work, comparison, shlex.join(["tools/bench/run", *kept]))


def _learn(options: argparse.Namespace) -> None:
    """Compare learning curves; print a table, write the curves and draw them."""
    systems = [_find_system("learn", text) for text in options.systems]
    picture = options.results.with_suffix(".svg")
    require_drawable(picture)
    if picture == options.results:
        raise UserError(f"the plot would overwrite {picture}; --results must not end in .svg; choose another name")
    if not picture.absolute().parent.is_dir():
        raise UserError(f"{picture.parent}: no such folder; --results must be in an existing folder; create it")
    workload = Workload(
        "learn",
        str(options.folder.absolute()),
        vocabulary_size(options.folder),
        SHAPES[options.shape],
        precision=options.precision,
        threads=options.threads,
        batch_tokens=options.batch_tokens,
        updates=options.updates,
        learning=Learning(options.rounds, 0, options.learning_rate, options.warmup_steps, ""),
    )
    curves = learn(workload, systems, options.seeds, options.results)
    draw(curves, picture)
    sys.stdout.write(summarize(curves))


def _find_system(task: str, text: str) -> System:
    """Parse a system; raises UserError if it does not support the task or a setting."""
    name, settings = _parse_system(text)
    able = [peer for peer in PEERS if task in PEERS[peer].tasks]
    if name not in able:
        raise UserError(f"{name!r} does not support {task!r}; it must be one of {', '.join(able)}; choose one")
    _require_known(task, name, settings)
    return name, settings


def _require_known(task: str, name: str, settings: Mapping[str, str]) -> None:
    """Raise UserError for a setting without effect on the task, or with a wrong value."""
    types = {field: type(getattr(Workload, field)) for field in FIELDS[task]}
    own = tuple(PEERS[name].options.get(task, "").split())
    sections = tuple(one for one in own if one.endswith("."))
    for key, value in settings.items():
        if not (key.isupper() or key in types or key in own or key.startswith(sections)):
            known = ", ".join([*own, *types])
            raise UserError(f"{name} has no setting {key!r} for {task!r}; it must be one of {known}; correct it")
        if value not in CHOICES.get(key, (value,)):
            raise UserError(f"{name}:{key} must be one of {', '.join(CHOICES[key])}, got {value!r}; correct it")
        try:
            parsed = types.get(key, str)(value)
        except ValueError as error:
            kind = "an integer" if types[key] is int else "a number"
            raise UserError(f"{name}:{key} must be {kind}, got {value!r}; correct it") from error
        if isinstance(parsed, int) and parsed < 1:
            raise UserError(f"{name}:{key} must be at least 1, got {value}; correct it")


def _compare_files(options: argparse.Namespace) -> None:
    """Compare systems that translate a file, and add the result to the ledger."""
    names = [field.name for field in fields(FileWorkload)]
    workload = FileWorkload(**{name: getattr(options, name) for name in names})
    num_lines = count_lines(workload.source)
    require_lines(workload.source, num_lines)
    if workload.ref is not None:
        require_same_length(workload.source, num_lines, workload.ref, count_lines(workload.ref))
    compare_both = compare_loaded if options.loaded else compare_files
    comparison = compare_both(workload, _parse_system(options.ours), _parse_system(options.theirs), options.rounds)
    work = {"task": "file", "num_lines": num_lines, "beam_size": workload.beam_size}
    command = f"tools/bench/run file {options.ours} {options.theirs} --model RUN --source FILE"
    command += " --loaded" if options.loaded else ""
    command += "" if workload.device == FileWorkload.device else f" --device {workload.device}"
    command += "" if workload.beam_size == FileWorkload.beam_size else f" --beam-size {workload.beam_size}"
    _publish(options, work, comparison, command)


def _compare_servers(options: argparse.Namespace) -> None:
    """Compare two servers and add the result to the ledger."""
    metadata = read_model_metadata(find_model(options.model))
    languages = metadata.src_lang, metadata.tgt_lang
    workload = ServingWorkload(options.model, options.source, languages, options.clients, options.beam_size)
    comparison = compare_servers(workload, _parse_system(options.ours), _parse_system(options.theirs), options.rounds)
    num_lines = count_lines(workload.source)
    work = {"task": "serve", "num_lines": num_lines, "beam_size": workload.beam_size, "clients": workload.clients}
    command = f"tools/bench/run serve {options.ours} {options.theirs} --clients {options.clients}"
    command += "" if workload.beam_size == ServingWorkload.beam_size else f" --beam-size {workload.beam_size}"
    _publish(options, work, comparison, f"{command} --model RUN --source FILE")


def _publish(options: argparse.Namespace, work: dict[str, object], comparison: Comparison, command: str) -> None:
    ratio = comparison.ratio
    sys.stdout.write(f"{ratio.ratio:.3f} ({ratio.low:.3f} to {ratio.high:.3f})\n")
    sys.stdout.flush()
    add_entries([comparison_entry(options.goal, work, comparison, command, options.note)], options.ledger)


def _parse_system(text: str) -> System:
    """Parse `eole:precision=bf16,batch_tokens=4096`."""
    name, _, rest = text.partition(":")
    settings = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"{text!r}: {part!r} must have the form setting=value; correct it")
        settings[key] = value
    return name, settings


def _record(options: argparse.Namespace) -> None:
    """Add a value measured by another command to the ledger."""
    evidence = None
    if options.evidence is not None:
        try:
            evidence = json.loads(options.evidence.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(
                f"cannot read {options.evidence}: {error}; it must be JSON from `nmt bench --json`; check the file"
            ) from error
    if not math.isfinite(options.value):
        raise UserError(f"the value is {options.value}; it must be a finite number; correct it")
    entry = value_entry(options.goal, options.value, options.shown_command, options.note, evidence)
    add_entries([entry], options.ledger)


def _update_ledger(options: argparse.Namespace) -> None:
    if options.add is None:
        write_results(options.ledger)
        return
    if not (options.add / "results.json").is_file():
        raise UserError(f"{options.add} has no results.json; --add must be the folder of a ledger; correct it")
    known = read_ledger(options.ledger)
    added = [entry for entry in read_ledger(options.add) if entry not in known]
    add_entries(added, options.ledger)
    kept = sum(entry in added for entry in read_ledger(options.ledger))
    older = f"; left out {len(added) - kept}, because the ledger has newer ones" if kept < len(added) else ""
    say(f"added {counted(kept, 'measurement')}{older}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/bench/run",
        description="Compare the speed of nmt with other systems on one machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser("install", help="create environments of other systems")
    installing.add_argument("peers", nargs="+", choices=[name for name in PEERS if name != "nmt"])
    _add_data(commands.add_parser("data", help="prepare the text that all systems use"))
    for task in ("train", "decode", "prepare"):
        _add_comparison(commands.add_parser(task, help=f"compare two systems: {task}"), task)
    _add_learn(commands.add_parser("learn", help="compare learning curves on the same text, and BLEU"))
    _add_file(commands.add_parser("file", help="compare complete commands that translate a file"))
    _add_serve(commands.add_parser("serve", help="compare servers that translate one line per request"))
    recording = commands.add_parser("record", help="add a value measured by another command")
    recording.add_argument("goal", choices=BY_NAME, metavar="goal", help="a goal of RESULTS.md")
    recording.add_argument("value", type=float, help="in the unit of the goal; a fraction, not a percentage")
    recording.add_argument("--command", dest="shown_command", required=True, help="the command that measured it")
    recording.add_argument("--evidence", type=Path, help="output file of `nmt bench --json`")
    ledger = commands.add_parser("ledger", help="generate RESULTS.md from results.json")
    ledger.add_argument("--add", type=Path, metavar="FOLDER", help="first add measurements of another ledger")
    for command in commands.choices.values():
        command.allow_abbrev = False  # `_compare` removes options with local paths from the command in the ledger
        if command not in (installing, commands.choices["data"], commands.choices["learn"]):
            command.add_argument("--ledger", type=Path, default=DEFAULT_FOLDER, help="folder of the ledger")
    for command in (commands.choices[name] for name in ("train", "decode", "prepare", "file", "serve", "record")):
        command.add_argument("--note", default="", help="remark for the ledger, such as recipe and text")
    return parser


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="folder of parallel text, such as raw Multi30k")
    parser.add_argument("--src-lang", default="en")
    parser.add_argument("--tgt-lang", default="de")
    parser.add_argument("--vocab-size", type=int, default=8_000, help="joint vocabulary size (%(default)s)")
    parser.add_argument("--folder", type=Path, default=cache() / "text", help="output folder")


def _add_comparison(parser: argparse.ArgumentParser, task: str) -> None:
    _add_systems(parser, "nmt:precision=bf16", "eole:precision=bf16")
    parser.add_argument("--shape", choices=SHAPES, default="base", help="size of the model (%(default)s)")
    parser.add_argument("--folder", type=Path, default=cache() / "text", help="text prepared by `data`")
    _add_workload(parser, device="cpu or cuda", threads="threads of each system", warm_up="untimed rounds")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), help="precision of both systems (fp32)")
    if task == "train":
        _add_workload(parser, batch_tokens="target tokens per update", updates="updates per round")
    if task == "decode":
        _add_workload(parser, beam_size="beam size", batch_sentences="sentences per batch")
        _add_workload(parser, output_tokens="length of every output", num_sentences="sentences of the test set")


def _add_learn(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("systems", nargs="+", help="systems with their settings")
    results = "JSON file of the curves, next to which the plot is saved; differences are relative to its first system"
    parser.add_argument("--results", type=Path, required=True, help=results)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="seeds; those in the file are not repeated")
    parser.add_argument("--rounds", type=int, default=15, help="validations (%(default)s)")
    parser.add_argument("--updates", type=int, default=200, help="updates between validations (%(default)s)")
    parser.add_argument("--batch-tokens", type=int, default=4_096, help="target tokens per update (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1.0, help="factor of the noam schedule (%(default)s)")
    parser.add_argument("--warmup-steps", type=int, default=1_000, help="warm-up of the schedule (%(default)s)")
    parser.add_argument("--shape", choices=SHAPES, default="small", help="size of the model (%(default)s)")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16", help="of all systems (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each system (%(default)s)")
    parser.add_argument("--folder", type=Path, default=cache() / "text", help="text prepared by `data`")


def _add_workload(parser: argparse.ArgumentParser, **helps: str) -> None:
    """Add options for fields of the workload."""
    for name, text in helps.items():
        default = getattr(Workload, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), help=f"{text} ({default})")


def _add_file(parser: argparse.ArgumentParser) -> None:
    _add_systems(parser, _default_settings(["nmt"]), _default_settings(["ctranslate2", "transformers"]))
    _add_translation(parser, "file to translate")
    parser.add_argument("--ref", type=Path, help="reference translations, for BLEU")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of both systems (%(default)s)")
    loaded = _default_settings(["nmt"], LOADED_DEFAULTS)
    parser.add_argument("--loaded", action="store_true", help=f"time loaded systems, without startup; {loaded}")
    parser.add_argument("--warm-up", type=int, default=1, help="untimed rounds, at least 1 with --loaded (%(default)s)")


def _add_serve(parser: argparse.ArgumentParser) -> None:
    systems = "nmt (`nmt serve`), one-call (a call of CTranslate2 per request) or translate (`nmt translate`)"
    _add_systems(parser, systems, "another one of these")
    _add_translation(parser, "file with the line of each request")
    parser.add_argument("--clients", type=int, default=32, help="concurrent clients (%(default)s)")


def _add_translation(parser: argparse.ArgumentParser, source: str) -> None:
    parser.add_argument("--model", type=Path, required=True, help="trained model or run")
    parser.add_argument("--source", type=Path, required=True, help=source)
    parser.add_argument("--beam-size", type=int, default=5, help="beam size (%(default)s)")


def _add_systems(parser: argparse.ArgumentParser, ours: str, theirs: str) -> None:
    parser.add_argument("ours", help=f"a system with its settings: {ours}")
    parser.add_argument("theirs", help=f"another system: {theirs}")
    goals = [goal.name for goal in GOALS if goal.unit == "ratio"]
    parser.add_argument("--goal", choices=goals, metavar="GOAL", help="goal that this comparison measures")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds (%(default)s)")


def _default_settings(systems: Iterable[str], defaults: dict[str, dict[str, str]] = DEFAULTS) -> str:
    return "; ".join(f"{name}:{','.join(map('='.join, defaults[name].items()))}" for name in systems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
