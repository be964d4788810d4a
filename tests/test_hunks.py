"""Hunk algebra: diff and splice are inverse on any text, and splice is exact or refuses."""

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toppgate.errors import SourceError
from toppgate.hunks import Hunk, diff, digest, lines, select, splice

# Few distinct characters, so that lines repeat; among them every character at which str.splitlines would split.
TEXTS = st.text(alphabet="ab\n\n\r\x0b\x0c\x1c\x85\u2028é𝛑", max_size=40)
BASE = "one\ntwo\nthree\nfour\n"


@given(TEXTS, TEXTS)
def test_all_hunks_give_the_donor(base: str, donor: str) -> None:
    """Splicing every hunk of a diff gives the donor, whatever the terminators and the end of the text."""
    assert splice(base, diff(base, donor)) == donor


@given(TEXTS, TEXTS)
def test_no_hunk_gives_the_base(base: str, donor: str) -> None:
    """Splicing nothing changes nothing, and equal texts have no hunks."""
    assert splice(base, ()) == base
    assert (diff(base, donor) == ()) == (base == donor)


@given(TEXTS, TEXTS, st.data())
def test_order_of_choice_is_irrelevant(base: str, donor: str, data: st.DataObject) -> None:
    """Any permutation of any subset of the hunks gives the same text."""
    hunks = diff(base, donor)
    chosen = [hunk for hunk in hunks if data.draw(st.booleans())]
    assert splice(base, data.draw(st.permutations(chosen))) == splice(base, chosen)


@given(TEXTS)
def test_lines_keep_every_character(text: str) -> None:
    r"""Lines join to the text, and each has one ``\n``, at its end; the last may have none."""
    split = lines(text)
    assert "".join(split) == text
    assert len(split) == text.count("\n") + (text[-1:] not in ("", "\n"))
    assert all(line.index("\n") == len(line) - 1 for line in split[:-1])


@given(TEXTS, TEXTS, TEXTS)
def test_a_wrong_base_is_refused(base: str, donor: str, other: str) -> None:
    """A hunk that removes lines applies where exactly these lines are, and nowhere else."""
    for hunk in diff(base, donor):
        there = lines(other)[hunk.start - 1 : hunk.start - 1 + len(hunk.old)]
        if there != hunk.old:
            with pytest.raises(SourceError, match=f"hunk {hunk.sha256[:12]} at line {hunk.start}: the base does not"):
                splice(other, [hunk])


def test_autojunk_is_off() -> None:
    """A line that makes up most of a long text still anchors the diff: one added line is one hunk."""
    base = "same\n" * 400
    assert diff(base, "other\n" + base) == (Hunk(1, (), ("other\n",)),)


def test_start_of_each_kind_of_hunk() -> None:
    """A start is the first old line, 1-based; for an insertion it is the line that the new lines go before."""
    assert diff(BASE, "zero\n" + BASE) == (Hunk(1, (), ("zero\n",)),)
    assert diff(BASE, BASE + "five") == (Hunk(5, (), ("five",)),)
    assert diff(BASE, BASE.replace("two\n", "")) == (Hunk(2, ("two\n",), ()),)
    assert diff(BASE, BASE.replace("two", "2")) == (Hunk(2, ("two\n",), ("2\n",)),)


def test_digest_is_over_compact_unescaped_json() -> None:
    """A hunk's digest and the patch digest are the SHA-256 of bytes that can be written down."""
    hunk = Hunk(3, ('a"\t\x0c\n',), ("é\u2028\x7f\n", "b"))
    expected = hashlib.sha256('[3,["a\\"\\t\\f\\n"],["é\u2028\x7f\\n","b"]]'.encode()).hexdigest()
    assert hunk.sha256 == expected
    assert digest([hunk, hunk]) == hashlib.sha256(f'["{expected}","{expected}"]'.encode()).hexdigest()
    assert digest([]) == hashlib.sha256(b"[]").hexdigest()


@pytest.mark.parametrize(
    "pair",
    [
        (Hunk(2, ("two\n",), ("2\n",)), Hunk(2, ("two\n",), ("2\n",))),
        (Hunk(2, ("two\n", "three\n"), ()), Hunk(3, ("three\n",), ("3\n",))),
        (Hunk(2, (), ("a\n",)), Hunk(2, (), ("b\n",))),
        (Hunk(2, (), ("a\n",)), Hunk(2, ("two\n",), ())),
    ],
    ids=["twice", "overlap", "two insertions", "insertion at a change"],
)
@pytest.mark.parametrize("seed", range(4))
def test_hunks_that_touch_are_refused(pair: tuple[Hunk, Hunk], seed: int) -> None:
    """Two hunks that share a line or a start have no one meaning, in whatever order they come."""
    with pytest.raises(SourceError, match="overlaps hunk"):
        splice(BASE, random.Random(seed).sample(pair, 2))  # noqa: S311 - an order, not a secret


@pytest.mark.parametrize("start", [-3, 0, 6, 99])
def test_a_start_outside_the_base_is_refused(start: int) -> None:
    """An insertion has no old lines to check, so its place itself must exist."""
    with pytest.raises(SourceError, match="the base does not hold its old lines"):
        splice(BASE, [Hunk(start, (), ("x\n",))])


def test_adjacent_hunks_are_not_an_overlap() -> None:
    """Hunks on neighbouring lines apply together."""
    chosen = [Hunk(2, ("two\n",), ("2\n",)), Hunk(3, ("three\n",), ()), Hunk(4, (), ("3.5\n",))]
    assert splice(BASE, chosen) == "one\n2\n3.5\nfour\n"


def test_select_takes_prefixes() -> None:
    """A hunk is named by 12 to 64 digits of its digest; the result is in the order of the diff."""
    hunks = diff(BASE, "1\ntwo\n3\nfour\n")
    first, second = hunks
    assert select(hunks, [second.sha256[:12], first.sha256]) == hunks
    assert select(hunks, []) == ()


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("{}", "hunk .*: named twice"),
        ("0123456789ab", "found 0 times among 2 hunks"),
        ("31905c87d2b", "not 12 to 64"),
        ("31905C87D2B0", "not 12 to 64"),
        ("", "not 12 to 64"),
    ],
)
def test_select_refuses(prefix: str, message: str) -> None:
    """A prefix that is too short, malformed, unknown or repeated names nothing."""
    hunks = diff(BASE, "1\ntwo\n3\nfour\n")
    with pytest.raises(SourceError, match=message):
        select(hunks, [hunks[0].sha256, prefix.format(hunks[0].sha256[:12])])


def test_select_refuses_an_ambiguous_prefix() -> None:
    """A prefix that begins two digests names neither; equal hunks are the only practical way to get there."""
    hunk = Hunk(1, ("one\n",), ())
    with pytest.raises(SourceError, match="found 2 times among 2 hunks, expected once"):
        select([hunk, hunk], [hunk.sha256[:12]])
