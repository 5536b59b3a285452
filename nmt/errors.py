"""Errors that a user can cause."""

import errno
import sys
from pathlib import Path


class UserError(Exception):
    """An error that the user can fix; the message is one line: what is wrong; what is expected; what to do."""


class RecipeError(UserError):
    """An invalid or unreadable recipe."""


class MemoryFileError(UserError):
    """The file of a translation memory is unusable or damaged."""


class NoTranslationError(UserError):
    """The constraints exclude every output, or the model returns NaN."""


class JobEnded(UserError):  # noqa: N818 - reports no error of its own
    """The end of a multi-process job whose cause has been logged."""


class OrderlyEnd(Exception):  # noqa: N818 - not an error
    """An exit of all processes at the same step, for example after a signal; `status` is the exit status."""

    status = 0


class CommandError(UserError):
    """A command line that is invalid or does not fit existing files."""


def message_of(error: BaseException) -> str:
    """Return the message of an exception of another package on one line."""
    return " ".join(str(error).split())


def advice_on(error: OSError, advice: str) -> str:
    """Return what to do about a system error: `advice`, unless too many files are open."""
    is_limit = error.errno in (errno.EMFILE, errno.ENFILE)
    return "raise the limit on open files (ulimit -n), then rerun" if is_limit else advice


def advice_on_encoding(error: UnicodeEncodeError) -> str:
    """Return what to do about text that cannot be written."""
    if error.encoding == sys.getfilesystemencoding() == "utf-8":  # bytes of a path, see PEP 383
        return "rename the file or folder"
    return "set PYTHONUTF8=1, then rerun"


def describe_write_error(error: OSError, name: str, advice: str, *, needed: str = "", alternative: str = "") -> str:
    """Return the message for a file that cannot be written.

    advice:      what is expected and what to do, unless the disk is full or the file is too large
    needed:      space requirement
    alternative: remedy other than freeing space
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        wrong, remedy = f"the disk is full while writing {name}", "free some space"
    elif error.errno == errno.EFBIG:
        wrong, remedy = f"{name} exceeds the maximum file size", "raise the limit (ulimit -f, or the file system's)"
    else:
        return f"cannot write {name}: {error.strerror or error}; {advice_on(error, advice)}"
    remedy += f", or {alternative}" if alternative else ", then rerun"
    return "; ".join(filter(None, (wrong, needed, remedy)))


def describe_os_error(error: OSError) -> str:
    """Return a one-line message for an OSError of any operation."""
    if error.errno == errno.ENOENT and error.filename is None:
        try:
            Path.cwd()
        except FileNotFoundError:
            return "the current directory no longer exists; change to one that exists, then rerun the command"
    file = f" ({error.filename})" if error.filename is not None else ""
    advice = "check the path and its permissions, then rerun the command"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return describe_write_error(error, str(error.filename or "standard output or a file"), advice)
    return f"{error.strerror or error}{file}; {advice_on(error, advice)}"
