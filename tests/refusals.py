"""How tests see that something is refused, and how much work it took: both without a clock."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from toppgate.errors import ToppgateError


def refusal(call: Callable[[], object]) -> str:
    """Return the message of the ToppgateError that ``call`` raises: one printable line."""
    with pytest.raises(ToppgateError) as caught:
        call()
    message = str(caught.value)
    assert message.isprintable()
    return message


@contextmanager
def bounded(calls: int) -> Iterator[None]:
    """Fail when more Python and C functions than this are called: a bound on work that no busy machine changes."""
    left = calls

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal left
        left -= event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert left >= 0, f"{calls - left} calls, expected at most {calls}"


def lines_of(call: Callable[[], object]) -> int:
    """Return how many lines of Python ``call`` executes: each is constant work, or a call that is counted itself."""
    lines = 0

    def trace(_frame: object, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return lines
