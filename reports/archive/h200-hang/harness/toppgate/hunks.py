"""Zero-context hunks of a diff, their digests, and splicing them (contract, section 3, *cherry-pick*).

A hunk says which whole lines of the base, from which line on, become which lines.  It is applied at exactly that place,
and only if the old lines are there to the letter: no context, no fuzz, no search.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from toppgate.digests import Sha256, sha256_json
from toppgate.errors import SourceError


@dataclass(frozen=True)
class Hunk:
    r"""Lines that replace lines of a base text.

    Attributes
    ----------
    start
        1-based line of the base at which ``old`` begins; for an insertion the line it goes before.
    old, new
        Whole lines with their terminator ``\n``; only a text's last line may lack it.  Either may be empty.
    """

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def end(self) -> int:
        """The first base line after the hunk, 1-based."""
        return self.start + len(self.old)

    @property
    def sha256(self) -> Sha256:
        """SHA-256 of the compact JSON ``[start, [old…], [new…]]``; of such a list RFC 8785 is the compact form."""
        return sha256_json([self.start, list(self.old), list(self.new)])


def lines(text: str) -> tuple[str, ...]:
    r"""Split at ``\n`` only, terminators kept: a form feed or a lone ``\r`` is part of its line."""
    return tuple(re.findall(r"[^\n]*\n|[^\n]+", text))


def diff(base: str, donor: str) -> tuple[Hunk, ...]:
    """Return the hunks that turn ``base`` into ``donor``, in the order of their lines; none when they are equal.

    difflib's opcodes with autojunk off, so that the same two texts give the same hunks whatever their length.
    """
    old, new = lines(base), lines(donor)
    opcodes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return tuple(Hunk(i + 1, old[i:j], new[m:n]) for tag, i, j, m, n in opcodes if tag != "equal")


def splice(base: str, chosen: Iterable[Hunk]) -> str:
    """Return ``base`` with the chosen hunks applied, from the end towards the start.

    Raises
    ------
    SourceError
        A hunk was chosen twice, two share a line or a start, or the base does not hold a hunk's old lines at its start.
    """
    ordered = sorted(chosen, key=lambda hunk: hunk.start)
    for one, other in pairwise(ordered):
        if other.start < max(one.end, one.start + 1):
            raise SourceError(f"hunk {other.sha256[:12]} at line {other.start}: overlaps hunk {one.sha256[:12]}")
    text = list(lines(base))
    for hunk in reversed(ordered):
        where = slice(hunk.start - 1, hunk.end - 1)
        if not (1 <= hunk.start <= len(text) + 1 and tuple(text[where]) == hunk.old):
            raise SourceError(f"hunk {hunk.sha256[:12]} at line {hunk.start}: the base does not hold its old lines")
        text[where] = hunk.new
    return "".join(text)


def digest(hunks: Sequence[Hunk]) -> Sha256:
    """Return the patch digest: SHA-256 of the compact JSON list of all its hunks' digests, in order."""
    return sha256_json([hunk.sha256 for hunk in hunks])


def select(hunks: Sequence[Hunk], prefixes: Iterable[str]) -> tuple[Hunk, ...]:
    """Return the hunks whose digests begin with the given prefixes, in the order of ``hunks``.

    Raises
    ------
    SourceError
        A prefix is not 12 to 64 lower-case hex digits, or begins no hunk's digest or more than one; or one hunk is
        named twice.
    """
    digests = [hunk.sha256 for hunk in hunks]
    chosen: set[int] = set()
    for prefix in prefixes:
        if not re.fullmatch("[0-9a-f]{12,64}", prefix):
            raise SourceError(f"hunk {prefix!r}: not 12 to 64 lower-case hex digits")
        found = [index for index, value in enumerate(digests) if value.startswith(prefix)]
        if len(found) != 1 or found[0] in chosen:
            why = (
                "named twice"
                if len(found) == 1
                else f"found {len(found)} times among {len(hunks)} hunks, expected once"
            )
            raise SourceError(f"hunk {prefix}: {why}")
        chosen.add(found[0])
    return tuple(hunks[index] for index in sorted(chosen))
