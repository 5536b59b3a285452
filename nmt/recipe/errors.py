"""The errors that a user can cause."""


class UserError(Exception):
    """Something the user can mend; the message is one line: what is wrong; what it must be; what to do."""


class RecipeError(UserError):
    """A recipe that cannot be read or does not make sense."""


class JobEnded(UserError):  # noqa: N818 - the error was another one, in this process or another
    """A job of several processes ends for a reason that stderr already says."""


class OrderlyEnd(Exception):  # noqa: N818 - not an error
    """All processes leave at the same step, as after a signal to stop.

    status: exit status of the process
    """

    status = 0


class CommandError(UserError):
    """A command that does not fit what is there, such as the output of another command."""
