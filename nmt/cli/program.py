"""One program of all commands. Results go to stdout, everything else to stderr.

Exit status: 0 fine, 1 the work failed, 2 the command line or the recipe is wrong, 143 or 130 stopped by a signal after
saving.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from nmt.logs import console, is_verbose, set_verbosity
from nmt.processes.interruption import Interrupted
from nmt.recipe import CommandError, JobEnded, OrderlyEnd, RecipeError, UserError


@dataclass(frozen=True)
class Command:
    """A command that is imported when it is called, since some of them import packages that take seconds.

    attribute: the function in the module, or the group of commands
    summary:   what `nmt --help` says of it
    """

    module: str
    attribute: str
    summary: str

    def load(self, name: str) -> Any:
        """The command as typer runs it, under the name that the user types."""
        loaded: typer.Typer | Callable[..., None] = getattr(import_module(self.module), self.attribute)
        if isinstance(loaded, typer.Typer):
            return typer.main.get_group(loaded)
        alone = typer.Typer(add_completion=False)
        alone.command(name)(loaded)
        return typer.main.get_command(alone)


# In the order of `nmt --help`.
COMMANDS = {
    "run": Command("nmt.cli.recipes", "run", "Train a model by a recipe, translate its test sets and report."),
    "repeat": Command("nmt.cli.repeat", "repeat", "Run variants of a recipe with several seeds and compare them."),
    "prepare": Command("nmt.cli.recipes", "prepare", "Clean the corpora, train the tokenizer, write the token store."),
    "train": Command("nmt.cli.recipes", "train", "Train, resuming from the newest checkpoint of the run."),
    "average": Command("nmt.cli.recipes", "average", "Average several checkpoints into one model."),
    "recipes": Command("nmt.cli.recipe_list", "recipes", "List the recipes that come with nmt, or copy one."),
    "new": Command("nmt.cli.new", "new", "Write a recipe for your own text."),
    "config": Command("nmt.cli.recipes", "config", "Print a recipe with all its options and what they mean."),
    "leaks": Command("nmt.cli.leaks", "leaks", "List the test sentences that occur in the training text."),
    "info": Command("nmt.cli.info", "info", "Describe a model: training, scores, files, engines."),
    "translate": Command("nmt.cli.translate", "translate", "Translate text, line by line."),
    "serve": Command("nmt.cli.serve", "serve", "Serve translations over HTTP."),
    "score": Command("nmt.cli.score", "score", "Print the log-probability of given translations."),
    "align": Command("nmt.cli.align", "align", "Align the words of given sentence pairs."),
    "rerank": Command("nmt.cli.rerank", "rerank", "Rerank n-best lists by the scores of several models."),
    "shortlist": Command("nmt.cli.shortlist", "shortlist", "Make a lexical shortlist for faster translation."),
    "evaluate": Command("nmt.cli.evaluate", "evaluate", "Score translations against references, as sacreBLEU does."),
    "compare": Command("nmt.cli.compare", "compare", "Test whether systems differ from a baseline."),
    "export": Command("nmt.cli.export", "export", "Write a model for CTranslate2 or for transformers."),
    "import": Command("nmt.cli.export", "import_model", "Make a model of a Marian model of transformers."),
    "plot": Command("nmt.cli.plot", "app", "Draw training curves and attention."),
    "bench": Command("nmt.cli.bench", "app", "Measure how fast this machine trains and translates."),
    "guide": Command("nmt.cli.guide", "guide", "Print a page of the guide."),
}


class Program(TyperGroup):
    """The group of all commands, which only knows their names and summaries and imports the one that is called."""

    def __init__(self, **options: Any) -> None:
        summaries = [TyperCommand(name, help=command.summary) for name, command in COMMANDS.items()]
        super().__init__(**options | {"commands": summaries})

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of the help."""
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The name and the command that the arguments call, and the other arguments."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, COMMANDS[str(name)].load(str(name)), rest


app = typer.Typer(
    cls=Program,
    help="The encoder-decoder Transformer for machine translation: train, translate, score.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nmt {metadata.version('nmt')} (torch {metadata.version('torch')})")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the versions and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Write warnings and errors alone to stderr.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Put the time before each line on stderr; show tracebacks.")
    ] = False,
) -> None:
    """What precedes a command."""
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose are mutually exclusive; give one of them")
    set_verbosity("quiet" if quiet else "verbose" if verbose else "normal")


def main() -> None:
    """Run the command line and exit; every error that a user can cause is one line on stderr."""
    if sys.stdout is None:  # and the next file that is opened would take its place
        sys.exit(_refuse("standard output is closed; it must be open; redirect it, for example to /dev/null", 1))
    try:
        sys.exit(app(prog_name="nmt", standalone_mode=False))
    except typer.TyperException as error:
        sys.exit(_refuse(_wrong_usage(error)))
    except (RecipeError, CommandError) as error:
        sys.exit(_refuse(str(error)))
    except JobEnded:  # one of the processes has said why
        sys.exit(1)
    except UserError as error:
        sys.exit(_fail(str(error), 1))
    except OrderlyEnd as end:
        console.print(str(end), markup=False)
        sys.exit(end.status)
    except Interrupted as interrupted:
        sys.exit(_refuse(str(interrupted), interrupted.status))
    except KeyboardInterrupt:
        sys.exit(_fail("interrupted", 130))
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a disk that is full, a file that vanished, whatever was being done
        sys.exit(_fail(_describe(error), 1))


def _describe(error: OSError) -> str:
    """What the system refused, and what to do."""
    place = f" ({error.filename})" if error.filename is not None else ""
    if error.errno == errno.ENOSPC:
        return f"the disk is full{place}; there must be room; free some and give the command again"
    wrong = f"the system says: {error.strerror or error}{place}"
    return f"{wrong}; what the command reads and writes must be within its reach; see to it and give it again"


def _wrong_usage(error: typer.TyperException) -> str:
    """What is wrong with the command line, and where its help is; nothing if the help has just been printed."""
    message = error.format_message().rstrip(".").replace("Value error, ", "").replace("Input should be", "it must be")
    context = getattr(error, "ctx", None)  # unknown to what a command itself says
    return f"{message}; see '{context.command_path} --help'" if message and context else message


def _refuse(message: str, status: int = 2) -> int:
    """The same in every process that torchrun started, so that one of them says it."""
    return _fail(message, status) if message and os.environ.get("RANK", "0") == "0" else status


def _fail(message: str, status: int) -> int:
    if is_verbose():
        traceback.print_exc()
    console.print(f"nmt: {' '.join(message.split())}", markup=False)
    return status
