"""What could not be judged.

    ToppgateError                 one plain line for the user; the command ends with exit status 2
    ├─ ParamsError                a params file that cannot be used: file, key, value got, value expected
    ├─ SourceError                a kernel or host source that cannot be had: spec and reason
    ├─ InputError                 captured logits that cannot be read: file, tensor, value got, value expected
    │  └─ InputDriftError         … that are not the frozen ones
    ├─ RunError                   a run directory that cannot be used: path and reason
    └─ SigningError               a key or an envelope that cannot be used: path and reason

A verdict is never an exception: stop codes are values (see ``codes``).  A finding that has a stop code
but surfaces before the first stage, such as a drifted source, is a ``ToppgateError`` that names the code.
"""


def printable(text: str) -> str:
    """Return text as one line that a terminal only shows: what it would obey, line ends included, is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ToppgateError(Exception):
    """The base of all: its text is one line, made for a person; what a terminal would obey is escaped."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split())))


class ParamsError(ToppgateError):
    """A params file or value that cannot be used."""


class SourceError(ToppgateError):
    """A source that cannot be had, or whose bytes are not the pinned ones."""


class InputError(ToppgateError):
    """Captured logits that cannot be read."""


class InputDriftError(InputError):
    """A captured file whose bytes are not the frozen ones; its stop code is ``input_drift``."""


class RunError(ToppgateError):
    """A run directory that cannot be used."""


class SigningError(ToppgateError):
    """A key that cannot be used, or an envelope that cannot be signed."""
