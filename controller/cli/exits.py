"""Exit codes that scripts can rely on, and the error that carries one to the top."""

from enum import IntEnum


class Exit(IntEnum):
    """What the exit code of mlxctl says; 130 is an interrupt."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNREACHABLE = 5
    TIMED_OUT = 6
    REFUSED = 7
    INTERRUPTED = 130


class CliError(Exception):
    """Ends the command: a message for stderr, an optional hint, an exit code."""

    def __init__(self, message: str, *, hint: str = "", code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.message, self.hint, self.code = message, hint, code
