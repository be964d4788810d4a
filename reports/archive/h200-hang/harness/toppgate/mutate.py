"""Located edits: a kernel text with one small, named change (contract: no line of the text stands in this project).

An edit says in which top-level function a pattern must match, within one line and exactly once; so an edit that no
longer fits its text is refused, never applied elsewhere.
"""

import ast
import re
from dataclasses import dataclass

from toppgate.errors import SourceError


@dataclass(frozen=True)
class Mutant:
    """A wrong kernel, as an edit of the right one.

    Attributes
    ----------
    name, family
        The name is unique in a catalogue; the family says which part of the algorithm is wrong.
    function
        The top-level function that is edited.
    pattern, replacement
        A regular expression that matches within one line, once in the function, and what stands there instead, in the
        syntax of ``re.Match.expand``.
    about
        One sentence: what the mutant does wrong.
    equivalence
        Why no row can tell the mutant from the original; empty where no such claim is made.
    """

    name: str
    family: str
    function: str
    pattern: str
    replacement: str
    about: str
    equivalence: str = ""


def apply(text: str, mutant: Mutant) -> str:
    """Return ``text`` with the mutant's edit.

    Raises ``SourceError`` where the function is not defined exactly once at top level, or the pattern does not match
    exactly once in it.  That the result is a Python text is not checked: one that is none crashes its worker.
    """
    lines = text.splitlines(keepends=True)
    first, last = _extent(text, mutant)
    found = [(at, match) for at in range(first, last) for match in re.finditer(mutant.pattern, lines[at].rstrip("\n"))]
    if len(found) != 1:
        raise SourceError(f"mutant {mutant.name}: matches {len(found)} times in {mutant.function}, expected once")
    at, match = found[0]
    line = lines[at]
    lines[at] = line[: match.start()] + match.expand(mutant.replacement) + line[match.end() :]
    return "".join(lines)


def _extent(text: str, mutant: Mutant) -> tuple[int, int]:
    """The function's lines, as indices: its first, and the one after its last."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise SourceError(f"mutant {mutant.name}: the kernel is not a Python text: {error}") from None
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == mutant.function]
    if len(found) != 1 or found[0].end_lineno is None:
        raise SourceError(f"mutant {mutant.name}: {mutant.function} is defined {len(found)} times, expected once")
    return found[0].lineno - 1, found[0].end_lineno
