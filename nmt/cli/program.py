"""The command-line program. Results go to stdout, everything else to stderr.

Exit status: 0 success, 1 failure, 2 invalid command line or recipe, 129, 130 or 143 stopped by a signal.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from nmt.errors import (
    CommandError,
    JobEnded,
    OrderlyEnd,
    RecipeError,
    UserError,
    advice_on_encoding,
    describe_os_error,
)
from nmt.logs import is_first_rank, is_verbose, print_line, set_verbosity
from nmt.processes.environment import world_size
from nmt.processes.interruption import EXIT_STATUS, Interrupted

_HOME = re.compile(r"^(-\w|[\w.-]+=|)~(?=/|\Z)")  # at the start of a path
_DASH = re.compile(r"^(-\w|--[\w-]+=|)(?:\./+)+-\Z")  # pathlib shortens it to -


class _OneValueEach(TyperCommand):
    """A command that rejects a repeated option, whose first value would otherwise be ignored."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; raises BadParameter for a repeated option that takes one value.

        ~ becomes the home directory even where the shell does not expand it, as in --out=~/NAME. ./- is a file.
        """
        args = [_HOME.sub(lambda found: found[1] + os.path.expanduser("~"), arg) for arg in args]  # noqa: PTH111
        args = [_DASH.sub(lambda found: f"{found[1]}{Path.cwd() / '-'}", arg) for arg in args]
        _, _, options = self.make_parser(ctx).parse_args(list(args))
        for index, option in enumerate(options):
            if isinstance(option, TyperOption) and not option.multiple and option in options[:index]:
                raise typer.BadParameter(f"{option.opts[-1]} is given twice; expected at most once; remove one", ctx)
        return super().parse_args(ctx, args)


@dataclass(frozen=True)
class Command:
    """A command whose module is imported when the command is called; some imports take seconds.

    attribute: function, dataclass of options with a method `run`, or typer application in the module
    summary:   for `nmt --help`
    """

    module: str
    attribute: str
    summary: str

    def load(self, name: str) -> Any:
        """Import the module and return its command or group of commands. name: for its usage line"""
        loaded: typer.Typer | type[Any] | Callable[..., None] = getattr(import_module(self.module), self.attribute)
        if isinstance(loaded, typer.Typer):
            for subcommand in loaded.registered_commands:
                subcommand.cls = _OneValueEach
            return typer.main.get_group(loaded)
        alone = typer.Typer(add_completion=False)
        alone.command(name, cls=_OneValueEach)(_as_function(loaded) if isinstance(loaded, type) else loaded)
        return typer.main.get_command(alone)


def _as_function(options: type[Any]) -> Callable[..., None]:
    """Return a function for typer whose parameters are the fields of a dataclass."""

    def run(**values: object) -> None:
        options(**values).run()

    run.__doc__ = options.__doc__
    run.__annotations__ = get_type_hints(options, include_extras=True)
    parameters = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=run.__annotations__[field.name],
        )
        for field in fields(options)
    ]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


COMMANDS = {
    "run": Command("nmt.cli.recipes", "run", "Run a recipe: train a model, translate and score its test sets."),
    "plan": Command("nmt.cli.plan", "plan", "Forecast a run: updates, load balance, memory, disk and time."),
    "repeat": Command("nmt.cli.repeat", "repeat", "Run variants of a recipe with several seeds and compare them."),
    "prepare": Command("nmt.cli.recipes", "prepare", "Clean the corpora, train the tokenizer and encode the text."),
    "train": Command("nmt.cli.recipes", "train", "Train, resuming from the newest checkpoint of the run."),
    "replay": Command("nmt.cli.replay", "replay", "Repeat one update of a run and list its pairs by loss."),
    "lr-range": Command("nmt.cli.lr_range", "lr_range", "Test a range of learning rates and plot the loss."),
    "average": Command("nmt.cli.recipes", "average", "Average checkpoints of a run, or several models."),
    "recipes": Command("nmt.cli.recipes", "recipes", "List the recipes that come with nmt, or copy one."),
    "new": Command("nmt.cli.new", "new", "Write a recipe for your text."),
    "config": Command("nmt.cli.recipes", "config", "Print a recipe with all options and their documentation."),
    "leaks": Command("nmt.cli.leaks", "leaks", "List the test sentences that occur in the training text."),
    "info": Command("nmt.cli.info", "info", "Describe a model: training, scores, files, engines."),
    "translate": Command("nmt.cli.translate", "Translate", "Translate text, line by line."),
    "serve": Command("nmt.cli.serve", "Serve", "Serve translations over HTTP."),
    "score": Command("nmt.cli.score", "score", "Print the log-probabilities of given translations."),
    "classify": Command("nmt.cli.classify", "classify", "Classify texts or text pairs, line by line."),
    "train-classifier": Command("nmt.cli.classify", "train_classifier", "Train a classifier of texts or text pairs."),
    "align": Command("nmt.cli.align", "align", "Align the words of sentence pairs."),
    "heads": Command("nmt.cli.heads", "heads", "Measure attention heads, and prune them."),
    "rerank": Command("nmt.cli.rerank", "rerank", "Rerank n-best lists with several models."),
    "shortlist": Command("nmt.cli.shortlist", "shortlist", "Make a lexical shortlist for faster translation."),
    "evaluate": Command("nmt.cli.evaluate", "Evaluate", "Score translations against references, as sacreBLEU does."),
    "compare": Command("nmt.cli.compare", "Compare", "Test whether systems differ from a baseline."),
    "export": Command("nmt.cli.export", "export", "Convert a model to CTranslate2 or transformers."),
    "import": Command("nmt.cli.export", "import_model", "Convert a Marian model from transformers."),
    "plot": Command("nmt.cli.plot", "app", "Plot training curves and attention."),
    "bench": Command("nmt.cli.bench", "app", "Measure training and translation speed."),
    "guide": Command("nmt.cli.guide", "guide", "Print a page of the guide."),
}

_SINGLE_PROCESS = {"average", "new", "leaks", "info", "serve", "score", "classify", "align", "heads", "rerank"}
_SINGLE_PROCESS |= {"shortlist", "export", "import", "plot"}


class Program(TyperGroup):
    """The group of all commands, which imports only the one that is called."""

    def __init__(self, **options: Any) -> None:
        summaries = [TyperCommand(name, help=command.summary) for name, command in COMMANDS.items()]
        super().__init__(**options | {"commands": summaries})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that the arguments call."""
        name, _, rest = super().resolve_command(ctx, args)
        if name is None:  # completion after an unknown command
            return name, None, rest
        if name in _SINGLE_PROCESS and "TORCHELASTIC_RUN_ID" in os.environ and (size := world_size()) != 1:
            raise CommandError(f"nmt {name} uses one process, got {size}; run it without torchrun")
        command = COMMANDS[name].load(name)
        if not gc.isenabled():
            gc.freeze()  # modules live until the process exits, so collections can skip them
            gc.enable()
            if callable(signal.getsignal(signal.SIGINT)):
                signal.signal(signal.SIGINT, signal.default_int_handler)
        return name, command, rest


app = typer.Typer(
    cls=Program,
    help="The encoder-decoder Transformer for machine translation: train, translate, score.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_given: bool) -> None:
    if is_given:
        from importlib import metadata  # noqa: PLC0415 - slow to import

        typer.echo(f"nmt {metadata.version('nmt')} (torch {metadata.version('torch')})")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the versions and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Write only warnings and errors to stderr.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Add timestamps and tracebacks to stderr.")] = False,
) -> None:
    """Options of all commands."""
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose are mutually exclusive; give one of them")
    set_verbosity("quiet" if quiet else "verbose" if verbose else "normal")


def main() -> None:
    """Run the command line and exit; user errors are one line on stderr."""
    if sys.stdout is None:  # the next opened file would get its descriptor
        sys.exit(_fail_once("standard output is closed; it must be open; redirect it, for example to /dev/null", 1))
    try:
        status = app(prog_name="nmt", standalone_mode=False)
        sys.exit(_fail("interrupted", status) if status == 130 else status)  # typer handles Ctrl-C without a message
    except typer.TyperException as error:
        sys.exit(_fail_once(_wrong_usage(error)))
    except (RecipeError, CommandError) as error:
        sys.exit(_fail_once(str(error)))
    except JobEnded:  # another process has reported why
        sys.exit(1)
    except UserError as error:
        sys.exit(_fail(str(error), 1))
    except OrderlyEnd as end:
        if is_first_rank():  # all processes end together
            print_line(str(end))
        sys.exit(end.status)
    except Interrupted as interrupted:
        for number in EXIT_STATUS:  # copies of the signal
            signal.signal(number, signal.SIG_IGN)
        sys.exit(_fail(str(interrupted), interrupted.status) if is_first_rank() else interrupted.status)
    except UnicodeEncodeError as error:
        wrong = f"cannot write {error.object[error.start]!r} in {error.encoding}"
        sys.exit(_fail(f"{wrong}; {advice_on_encoding(error)}", 1))
    except BrokenPipeError:  # the reader of the output has exited, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # e.g. a full disk
        sys.exit(_fail(describe_os_error(error), 1))


def _wrong_usage(error: typer.TyperException) -> str:
    """Return the message of a usage error, "" if the help has been printed instead."""
    message = error.format_message().removeprefix("Invalid value: ").rstrip(".")
    message = message.replace("Value error, ", "").replace("Input should be", "it must be")
    option = getattr(error, "option_name", None)
    if option in ("-q", "--quiet", "-v", "--verbose"):
        return f"{option} is an option of nmt itself; put it before the command, as in nmt {option} translate"
    context = getattr(error, "ctx", None)  # errors raised by a command have no context
    return f"{message}; see '{context.command_path} --help'" if message and context else message


def _fail_once(message: str, status: int = 2) -> int:
    """Report an error of all processes of torchrun once, on rank 0.

    torchrun ends all processes as soon as one fails; the other ranks therefore wait until rank 0 has reported.
    """
    if message and not is_first_rank():
        time.sleep(5)
    return _fail(message, status) if message else status


def _fail(message: str, status: int) -> int:
    if is_verbose():
        traceback.print_exc()
    print_line(f"nmt: {' '.join(message.split())}")
    return status
