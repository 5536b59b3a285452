"""The errors that a user can cause."""


class UserError(Exception):
    """Something the user can mend; the message is one line: what is wrong; what it must be; what to do."""


class RecipeError(UserError):
    """A recipe that cannot be read or does not make sense."""
