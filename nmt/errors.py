"""Errors that a user can cause."""

import errno


class UserError(Exception):
    """An error that the user can fix; the message is one line: what is wrong; what is expected; what to do."""


class RecipeError(UserError):
    """An invalid or unreadable recipe."""


class MemoryFileError(UserError):
    """The file of a translation memory is unusable or damaged."""


class JobEnded(UserError):  # noqa: N818 - reports no error of its own
    """The end of a multi-process job whose cause has been logged."""


class OrderlyEnd(Exception):  # noqa: N818 - not an error
    """An exit of all processes at the same step, for example after a signal; `status` is the exit status."""

    status = 0


class CommandError(UserError):
    """A command line that is invalid or does not fit existing files."""


def advice_on(error: OSError, advice: str) -> str:
    """Return what to do about a system error: `advice`, unless too many files are open."""
    is_limit = error.errno in (errno.EMFILE, errno.ENFILE)
    return "raise the limit on open files (ulimit -n), then rerun" if is_limit else advice
