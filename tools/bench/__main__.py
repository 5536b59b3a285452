"""The command line of `tools/bench/run`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.contest import hold_contest
from bench.environments import PEERS, cache, install
from bench.files import DEFAULTS, FileWork, translate_in_turns
from bench.goals import BY_NAME
from bench.ledger import HOME, add_entry, add_ledger, contest_entry, figure_entry, file_entry, write_results
from bench.text import prepare_text, text_recipe, vocabulary_of
from bench.work import Shape, Work, parse_contestant
from nmt.logs import console, say
from nmt.recipe import UserError

SHAPES = {
    "tiny": Shape(4, 4, 128, 256, 4, 0.3),
    "base": Shape(),
    "big": Shape(d_model=1024, d_ff=4096, num_heads=16, dropout=0.3),
}

SYSTEMS = "\n".join(f"  {name:<15}{', '.join(peer.tasks)}" for name, peer in PEERS.items())

EXAMPLES = f"""\
examples:
  tools/bench/run install transformers ctranslate2 eole
  tools/bench/run data --data FOLDER              raw Multi30k or the like: train.en, train.de, val.en, ...
  tools/bench/run train nmt:precision=bf16,compile=true eole:precision=bf16 --goal train-cpu-eole-bf16
  tools/bench/run decode nmt:precision=bf16 ctranslate2:compute_type=float16 --device cuda --goal decode-gpu-batch32
  tools/bench/run file nmt ctranslate2 --model runs/NAME --source FILE --ref FILE --goal file-int8
  tools/bench/run record train-cpu-linear 0.62 --command 'nmt bench train base ...' --evidence train.json

A system is given as NAME:setting=value,...: fields of the work (precision, threads, batch_tokens, batch_sentences,
...), options of the system (see the head of its file in tools/bench/peers), and VARIABLES. Measure only on a machine
that does nothing else. Environments go to NMT_BENCH_CACHE, or the user's cache.

systems, and what they can do here:
{SYSTEMS}

exit status: 0 measured and noted in tools/bench/RESULTS.md and results.json, 1 failed, 2 the command line is wrong
"""


def main(arguments: Sequence[str]) -> int:
    """Run one command; gives the exit status."""
    options = _parser().parse_args(arguments)
    try:
        match options.command:
            case "install":
                for name in options.peers:
                    install(name)
            case "data":
                recipe = text_recipe(
                    options.data,
                    options.folder,
                    src_lang=options.src_lang,
                    tgt_lang=options.tgt_lang,
                    vocab_size=options.vocab_size,
                )
                prepare_text(recipe)
                say(f"text for all systems is in {options.folder}")
            case "record":
                _record(options)
            case "ledger":
                if options.add is not None:
                    say(f"{add_ledger(options.add, options.ledger)} measurements added")
                write_results(options.ledger)
            case "file":
                _compare_commands(options)
            case _:
                _compare(options, arguments)
    except UserError as error:
        console.print(f"bench: {error}", markup=False)
        return 1
    return 0


def _compare(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Two systems in turns; what comes out is noted."""
    ours, theirs = (_contestant(text, options.command) for text in (options.ours, options.theirs))
    folder: Path = options.folder
    work = Work(options.command, str(folder.absolute()), vocabulary_of(folder), SHAPES[options.shape])
    given = {name: value for name, value in vars(options).items() if name in vars(work) and value is not None}
    work = replace(work, **{name: value for name, value in given.items() if name not in ("folder", "shape")})
    contest = hold_contest(work, ours, theirs, options.rounds)
    command = shlex.join(["tools/bench/run", *(_without_folder(arguments))])
    add_entry(contest_entry(options.goal, work, contest, command, options.note), options.ledger)
    ratio = contest.ratio
    sys.stdout.write(f"{ratio.ratio:.3f} ({ratio.low:.3f} to {ratio.high:.3f})\n")


def _compare_commands(options: argparse.Namespace) -> None:
    """Whole commands of two systems in turns; what comes out is noted."""
    ours, theirs = _parsed(options.ours), _parsed(options.theirs)
    work = FileWork(options.model, options.source, options.ref, options.beam_size, options.warm_up)
    contest = translate_in_turns(work, ours, theirs, options.rounds)
    command = f"tools/bench/run file {options.ours} {options.theirs} --model RUN --source FILE"
    add_entry(file_entry(options.goal, work, contest, command, options.note), options.ledger)
    ratio = contest.ratio
    sys.stdout.write(f"{ratio.ratio:.3f} ({ratio.low:.3f} to {ratio.high:.3f})\n")


def _parsed(text: str) -> tuple[str, dict[str, str]]:
    try:
        return parse_contestant(text)
    except ValueError as error:
        raise UserError(f"{error}; correct it") from error


def _contestant(text: str, task: str) -> tuple[str, dict[str, str]]:
    name, settings = _parsed(text)
    able = [peer for peer, facts in PEERS.items() if task in facts.tasks]
    if name not in able:
        raise UserError(f"{name!r} cannot {task} here; it must be one of {', '.join(able)}; choose one")
    return name, settings


def _without_folder(arguments: Sequence[str]) -> list[str]:
    """The command line without where things lie on this machine."""
    kept = list(arguments)
    for option in ("--folder", "--ledger", "--note"):
        if option in kept:
            place = kept.index(option)
            del kept[place : place + 2]
    return kept


def _record(options: argparse.Namespace) -> None:
    """Note a figure that was measured otherwise."""
    evidence = None
    if options.evidence is not None:
        try:
            evidence = json.loads(options.evidence.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(
                f"cannot read {options.evidence}: {error}; it must be JSON, as of `nmt bench --json`; check it"
            ) from error
    add_entry(figure_entry(options.goal, options.value, options.shown_command, options.note, evidence), options.ledger)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/bench/run",
        description="Measure nmt against other systems, in turns on one machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser("install", help="make environments of other systems")
    installing.add_argument("peers", nargs="+", choices=[name for name in PEERS if name != "nmt"])
    _add_data(commands.add_parser("data", help="prepare the text that all systems work on"))
    for task in ("train", "decode", "prepare"):
        _add_contest(commands.add_parser(task, help=f"two systems {task} in turns"), task)
    _add_file(commands.add_parser("file", help="two whole commands that translate a file, in turns"))
    recording = commands.add_parser("record", help="note a figure that was measured otherwise")
    recording.add_argument("goal", choices=BY_NAME)
    recording.add_argument("value", type=float)
    recording.add_argument("--command", dest="shown_command", required=True, help="what measured it")
    recording.add_argument("--note", default="", help="what else must be known")
    recording.add_argument("--evidence", type=Path, help="file of `nmt bench --json`")
    remaking = commands.add_parser("ledger", help="write RESULTS.md from results.json")
    remaking.add_argument("--add", type=Path, metavar="FOLDER", help="first add what another ledger has besides")
    for command in (recording, remaking):
        command.add_argument("--ledger", type=Path, default=HOME, help="folder of the ledger")
    return parser


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="folder of parallel text, such as raw Multi30k")
    parser.add_argument("--src-lang", default="en")
    parser.add_argument("--tgt-lang", default="de")
    parser.add_argument("--vocab-size", type=int, default=8_000, help="joint pieces")
    parser.add_argument("--folder", type=Path, default=cache() / "text", help="where it goes")


def _add_contest(parser: argparse.ArgumentParser, task: str) -> None:
    parser.add_argument("ours", help="a system with its settings, such as nmt:precision=bf16")
    parser.add_argument("theirs", help="another, such as eole:precision=bf16")
    parser.add_argument("--goal", choices=BY_NAME, help="the goal that this decides")
    parser.add_argument("--note", default="", help="what else must be known")
    parser.add_argument("--rounds", type=int, default=7, help="laps of each (7)")
    parser.add_argument("--shape", choices=SHAPES, default="base", help="of the model (base)")
    parser.add_argument("--folder", type=Path, default=cache() / "text", help="text that `data` prepared")
    parser.add_argument("--ledger", type=Path, default=HOME, help="folder of the ledger")
    parser.add_argument("--device", help="cpu or cuda (cpu)")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), help="of both (fp32)")
    parser.add_argument("--threads", type=int, help="of each system (2)")
    parser.add_argument("--warm-up", type=int, help="laps that do not count (1)")
    if task == "train":
        parser.add_argument("--batch-tokens", type=int, help="target tokens of an update (2,048)")
        parser.add_argument("--updates", type=int, help="of a lap (10)")
    if task != "decode":
        return
    parser.add_argument("--beam-size", type=int, help="hypotheses (4)")
    parser.add_argument("--batch-sentences", type=int, help="translated together (32)")
    parser.add_argument("--output-tokens", type=int, help="of every output (16)")
    parser.add_argument("--num-sentences", type=int, help="of the test set (256)")


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ours", help=f"a system with its settings: {_shown_settings('nmt')}")
    parser.add_argument("theirs", help=f"another: {_shown_settings('ctranslate2')}; {_shown_settings('transformers')}")
    parser.add_argument("--model", type=Path, required=True, help="a trained model or run")
    parser.add_argument("--source", type=Path, required=True, help="the file to translate")
    parser.add_argument("--ref", type=Path, help="reference translations, for BLEU")
    parser.add_argument("--beam-size", type=int, default=5, help="hypotheses (5)")
    parser.add_argument("--rounds", type=int, default=7, help="commands of each (7)")
    parser.add_argument("--warm-up", type=int, default=1, help="rounds that do not count (1)")
    parser.add_argument("--goal", choices=BY_NAME, help="the goal that this decides")
    parser.add_argument("--note", default="", help="what else must be known, such as the recipe and the text")
    parser.add_argument("--ledger", type=Path, default=HOME, help="folder of the ledger")


def _shown_settings(system: str) -> str:
    return f"{system}:{','.join(map('='.join, DEFAULTS[system].items()))}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
