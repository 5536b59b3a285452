"""One program of all commands. Results go to stdout, everything else to stderr.

Exit status: 0 fine, 1 the work failed, 2 the command line or the recipe is wrong, 143 or 130 stopped by a signal after
saving.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import metadata
from typing import Annotated

import typer

from nmt.cli import bench, plot
from nmt.cli.align import align
from nmt.cli.compare import compare
from nmt.cli.evaluate import evaluate
from nmt.cli.export import export, import_model
from nmt.cli.recipes import average, config, prepare, run, train
from nmt.cli.rerank import rerank
from nmt.cli.score import score
from nmt.cli.shortlist import shortlist
from nmt.cli.translate import translate
from nmt.logs import console, say
from nmt.recipe import RecipeError, UserError
from nmt.train.signals import Stopped
from nmt.watch import JobEnded

app = typer.Typer(
    help="The encoder-decoder Transformer for machine translation: train, translate, score.",
    no_args_is_help=True,
    add_completion=False,
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
) -> None:
    """What precedes a command."""


# In the order of `nmt --help`.
for command in (
    run,
    prepare,
    train,
    average,
    config,
    translate,
    score,
    align,
    rerank,
    shortlist,
    evaluate,
    compare,
    export,
):
    app.command()(command)
app.command("import")(import_model)
app.add_typer(plot.app, name="plot")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command line and exit; every error that a user can cause is one line on stderr."""
    try:
        sys.exit(app(prog_name="nmt", standalone_mode=False))
    except typer.TyperException as error:
        sys.exit(_refuse(_wrong_usage(error)))
    except RecipeError as error:
        sys.exit(_refuse(str(error)))
    except JobEnded:  # one of the processes has said why
        sys.exit(1)
    except UserError as error:
        sys.exit(_fail(str(error), 1))
    except Stopped as stopped:
        say(str(stopped))
        sys.exit(stopped.status)
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


def _refuse(message: str) -> int:
    """The same in every process that torchrun started, so that one of them says it."""
    return _fail(message, 2) if message and os.environ.get("RANK", "0") == "0" else 2


def _fail(message: str, status: int) -> int:
    console.print(f"nmt: {' '.join(message.split())}", markup=False)
    return status
