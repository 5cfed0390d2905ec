"""One tree of errors, every one of them a single line for the user.

ProtocolError                anything the user can mend; the command line prints it and exits 2
├── BadInput                 a file, row, field or option is not what was expected
│   └── InfeasibleCorridor   the corridor cannot hold the number of merges asked for
├── SchedulerError           a user's scheduler crashed, hung, exited or answered nonsense
└── SidecarError             a server could not be reached or did not serve
"""

from __future__ import annotations


class ProtocolError(Exception):
    """Base of every error whose message is meant for the user."""


class BadInput(ProtocolError):
    """What was found and what was expected, with the file, row or field that holds it."""

    def __init__(self, where: str, found: str, expected: str) -> None:
        self.where, self.found, self.expected = where, found, expected
        super().__init__(f"{_short(where)}: found {_short(found)}; expected {expected}")

    def __reduce__(self) -> tuple[type[BadInput], tuple[str, str, str]]:
        return type(self), (self.where, self.found, self.expected)


def _short(text: str) -> str:
    """The text, without its middle where it is longer than anybody reads."""
    return text if len(text) <= 400 else f"{text[:190]} ... {text[-190:]}"


class InfeasibleCorridor(BadInput):
    """No placement of the wanted number of merges obeys the corridor."""


class SchedulerError(ProtocolError):
    """A scheduler did not behave: the message names its file, line and observation where known."""


class SidecarError(ProtocolError):
    """An inference server could not be started, reached or trusted."""


class Interrupted(Exception):
    """The user ended a command; the message says what is kept."""
