"""``toppgate bisect``: which hunks of the diff from stock to patch fix, and which break, each row that stops at an end.

Each hunk is taken *alone*, as a cherry-pick on stock with whatever it only compiles together with (``dependence``), and
*left out* of the patch, with whatever does not compile without it.  Both ends run over the whole frozen matrix; every
cherry-pick then over the cases in which a row stops at either end, in the patch's seat and by the patch's rules, with
the slices that its own plan gives.  Where no hunk alone does what the patch does, but several are needed for it, these
are tried together.  Nothing is told the tool of what a hunk is for: a row's code under each text is all it has.
"""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from toppgate import blame, codes, dependence, digests, evidence, execute, host, hunks, judge, published, seats, source
from toppgate import run as runner
from toppgate.errors import RunError, SourceError
from toppgate.evidence import Evidence
from toppgate.execute import Side, Told
from toppgate.hunks import Hunk
from toppgate.schema import Case, Params, Slices
from toppgate.stage import Run

Record = dict[str, Any]

#: What is done with a hunk.
ALONE, LEFT_OUT, TOGETHER = "alone", "left out", "together"

#: The two ends, as the names of texts.
STOCK, PATCH = execute.SIDES

#: (case, row).
Row = tuple[str, int]

_NOTHING: Final = frozenset[int]()


@dataclass(frozen=True)
class Pick:
    """A cherry-pick: the hunks that are in ``text``; ``problem`` says why it cannot be run, where it cannot.

    ``named`` are the hunks that it is about, indices of the diff; ``others`` those that go with them.
    """

    how: str
    named: frozenset[int]
    others: frozenset[int]
    text: bytes
    problem: str | None = None

    @property
    def sha256(self) -> digests.Sha256:
        """The digest of the text: two picks of one text are one kernel."""
        return digests.sha256(self.text)


@dataclass(frozen=True)
class Blamed:
    """One row that stops at an end, and the picks that say why.

    Attributes
    ----------
    stock, patch
        Its code with stock, and with the patch, in the patch's seat.
    alone
        Hunks that alone turn stock's outcome into the other one, a pass into a stop or a stop into a pass.
    needed
        Hunks without which the patch's outcome turns.
    together
        Whether the needed ones together turn stock's outcome; None where that was not asked.
    """

    case: str
    row: int
    role: str
    stock: str
    patch: str
    alone: tuple[str, ...]
    needed: tuple[str, ...]
    together: bool | None = None

    @property
    def change(self) -> str:
        """``fixed``, ``broken``, or ``stops`` where both ends stop."""
        if self.patch == codes.PASS:
            return "fixed"
        return "broken" if self.stock == codes.PASS else "stops"


def bisect(path: Path, out: Path | None, told: Told = str) -> tuple[Path, Record]:
    """Take the diff of a frozen params file apart; write and return ``bisection.json``, and ``bisection.html``.

    Parameters
    ----------
    path : a frozen params file, both of whose sides are kernel files
    out : where both files go; None for ``reports/<params stem>-bisect``.  Nothing is overwritten
    told : is given the name of each kernel that is done

    Raises
    ------
    ToppgateError : the params or a source cannot be used, or an end did not deliver every case
    """
    target = (out or Path("reports") / f"{path.stem}-bisect").absolute()
    checked = runner.prepare(path, target)
    if "callable" in (checked.stock.kind, checked.patch.kind):
        raise RunError(f"{path}: a Python function has no hunks to take apart; expected two kernel files")
    provided = host.provide(checked.host.model_dump(mode="json", exclude_unset=True), published.cache())
    texts = {name: _resolve(checked, name) for name in execute.SIDES}
    found = hunks.diff(*(texts[name].decode() for name in execute.SIDES))
    with tempfile.TemporaryDirectory(prefix="toppgate-") as scratch:
        bench = _Bench(seats.captured(Path(scratch) / "run", checked), provided, told)
        bench.execute(texts, checked.cases)
        ends = {name: bench.codes()[digests.sha256(text)] for name, text in texts.items()}
        _check_ends(ends)
        stopped = _stopped(checked, ends)
        picks = list(_picks(texts[STOCK].decode(), found))
        bench.try_out(picks, stopped)
        picks += _wanted(texts[STOCK].decode(), found, _blame(checked, ends, bench.codes(), picks, found))
        bench.try_out(picks, stopped)
        blamed = _blame(checked, ends, bench.codes(), picks, found)
        record = _record(bench.evidence(), found, blamed)
        record["picks"] = [_line(pick, found, ends[STOCK], bench.codes()) for pick in picks]
    _write(target, record)
    return target, record


def _resolve(checked: Params, side: str) -> bytes:
    return source.resolve(getattr(checked, side).model_dump(mode="json", exclude_unset=True), published.cache()).data


# ---------------------------------------------------------------------------------------------- cherry-picks


def _picks(stock: str, found: Sequence[Hunk]) -> Iterator[Pick]:
    """Yield each hunk alone and left out; hunks that only go together give one pick, and comments alone give none."""
    every = frozenset(range(len(found)))
    seen: set[tuple[str, frozenset[int]]] = set()
    for at in range(len(found)):
        if not _is_code(stock, found, at):
            continue
        for how in (ALONE, LEFT_OUT):
            pick = _pick(stock, found, how, frozenset({at}))
            inside = pick.named | pick.others if how == ALONE else every - pick.named - pick.others
            if (how, inside) not in seen:
                seen.add((how, inside))
                yield pick


def _pick(stock: str, found: Sequence[Hunk], how: str, named: frozenset[int]) -> Pick:
    every = frozenset(range(len(found)))

    def text_of(chosen: frozenset[int]) -> str:
        inside = every - chosen if how == LEFT_OUT else chosen
        return hunks.splice(stock, [found[at] for at in inside])

    with_others = dependence.together(named, found, text_of)
    if with_others is None:
        text = text_of(named)
        problem = f"does not compile with any other hunk: {', '.join(sorted(dependence.problems(text)))}"
        return Pick(how, named, _NOTHING, text.encode(), problem)
    data = text_of(with_others).encode()
    return Pick(how, named, with_others - named, data, _plan_problem(data))


def _plan_problem(data: bytes) -> str | None:
    """Return why a text's own split plan cannot be had, or None."""
    try:
        plan = source.plan(data)
        if plan is not None:
            plan(1, 1, 1)
    except SourceError as error:
        return str(error)
    return None


def _is_code(stock: str, found: Sequence[Hunk], at: int) -> bool:
    """Return whether a hunk changes more than comments, docstrings and layout; one that parses nowhere alone does."""
    try:
        return dependence.code(hunks.splice(stock, [found[at]])) != dependence.code(stock)
    except SyntaxError:
        return True


# ---------------------------------------------------------------------------------------------- executing


@dataclass
class _Bench:
    """One captured matrix, and what every text gave over it so far."""

    run: Run
    provided: host.Host
    told: Told

    def __post_init__(self) -> None:
        self._sides: list[Side] = []
        self._texts: dict[digests.Sha256, tuple[str, bytes, Sequence[Case]]] = {}
        self._codes: dict[digests.Sha256, dict[Row, str]] = {}
        self._reference = judge.Remembered()

    def execute(self, texts: Mapping[str, bytes], cases: Sequence[Case]) -> None:
        """Run texts over some cases of the matrix."""
        some = replace(self.run, params=self.run.params.model_copy(update={"cases": list(cases)}))
        if texts and cases:
            self._sides += execute.run_texts(some, texts, self.provided, self.told)
            self._texts |= {digests.sha256(text): (name, text, cases) for name, text in texts.items()}

    def try_out(self, picks: Sequence[Pick], cases: Sequence[Case]) -> None:
        """Run each text of the picks that can be run and has not been."""
        fresh = {pick.sha256: pick.text for pick in picks if pick.problem is None and pick.sha256 not in self._texts}
        self.execute({f"pick-{sha256[:16]}": text for sha256, text in fresh.items()}, cases)

    def evidence(self) -> Evidence:
        """Return what a run of all these texts holds."""
        return seats.evidence_of(self.run, self._sides, self.provided)

    def codes(self) -> dict[digests.Sha256, dict[Row, str]]:
        """Return {a text's digest: {row: its code}}, each text in the patch's seat."""
        found = self.evidence()
        for sha256 in self._texts.keys() - self._codes.keys():
            self._codes[sha256] = dict(self._judged(found, *self._texts[sha256]))
        return self._codes

    def _judged(self, found: Evidence, name: str, text: bytes, cases: Sequence[Case]) -> Iterator[tuple[Row, str]]:
        """Judge one text with the slices of its own plan."""
        plan = source.plan(text)
        for case in cases:
            units = case.compute_units or found.params.compute_units
            own = plan and plan(case.batch, case.vocabulary, units)
            cut = Slices(stock=None if case.slices is None else case.slices.stock, patch=own)
            seated = case.model_copy(update={"slices": cut})
            for row, judged in enumerate(judge.decide(seated, found.case(seated, patch=name), self._reference)):
                yield (case.id, row), judged.code


def _check_ends(ends: Mapping[str, Mapping[Row, str]]) -> None:
    """Raise ``RunError`` where an end itself delivered nothing to judge."""
    for name, seen in ends.items():
        for (case, _), code in seen.items():
            if code in codes.EVIDENCE and code != "output_altered":
                raise RunError(f"nothing can be taken apart: case {case}: {name} itself is {code}")


def _stopped(checked: Params, ends: Mapping[str, Mapping[Row, str]]) -> list[Case]:
    """Return the cases in which a row stops at either end."""
    ids = {case for seen in ends.values() for (case, _), code in seen.items() if code != codes.PASS}
    return [case for case in checked.cases if case.id in ids]


# ---------------------------------------------------------------------------------------------- blaming


def _blame(
    checked: Params,
    ends: Mapping[str, Mapping[Row, str]],
    seen: Mapping[digests.Sha256, Mapping[Row, str]],
    picks: Sequence[Pick],
    found: Sequence[Hunk],
) -> list[Blamed]:
    """Return each row that stops at an end with the hunks that turn its outcome."""
    roles = {(case.id, row): role for case in checked.cases for row, role in enumerate(case.roles())}
    blamed = []
    for at, stock in ends[STOCK].items():
        patch = ends[PATCH][at]
        if stock == patch == codes.PASS:
            continue

        def turns(pick: Pick, code: str, at: Row = at) -> bool:
            own = seen.get(pick.sha256, {}).get(at)
            return own is not None and (own == codes.PASS) != (code == codes.PASS)

        alone = _named(found, _least(p for p in picks if p.how == ALONE and turns(p, stock)))
        needed = _named(found, _least(p for p in picks if p.how == LEFT_OUT and turns(p, patch)))
        tried = [p for p in picks if p.how == TOGETHER and _names(found, p) == set(needed)]
        both = any(turns(p, stock) for p in tried) if tried and not alone else None
        blamed.append(Blamed(*at, roles[at], stock, patch, alone, needed, both))
    return blamed


def _least(picks: Iterable[Pick]) -> list[Pick]:
    """Return the picks that hold no other of them: what a pick does with its companions, one of these may do alone."""
    sets = [(pick, pick.named | pick.others) for pick in picks]
    return [pick for pick, own in sets if not any(other < own for _, other in sets)]


def _named(found: Sequence[Hunk], picks: Iterable[Pick]) -> tuple[str, ...]:
    """Return the digests of the hunks that picks are about, twelve digits each, in the order of the diff."""
    about = sorted({at for pick in picks for at in pick.named})
    return tuple(found[at].sha256[:12] for at in about)


def _names(found: Sequence[Hunk], pick: Pick) -> set[str]:
    return set(_named(found, [pick]))


def _wanted(stock: str, found: Sequence[Hunk], blamed: Sequence[Blamed]) -> Iterator[Pick]:
    """Yield the sets of needed hunks to try together: those of rows that no hunk alone turns."""
    number = {hunk.sha256[:12]: at for at, hunk in enumerate(found)}
    sets = {frozenset(number[name] for name in row.needed) for row in blamed if len(row.needed) > 1 and not row.alone}
    for named in sorted(sets, key=sorted):
        yield _pick(stock, found, TOGETHER, named)


# ---------------------------------------------------------------------------------------------- the record


def _record(gathered: Evidence, found: Sequence[Hunk], blamed: Sequence[Blamed]) -> Record:
    values = gathered.params.values()
    sides = gathered.executed["sides"]
    stock = _resolve(gathered.params, STOCK).decode()
    return {
        "schema": "toppgate/bisection/1",
        "title": gathered.params.title,
        "device": gathered.params.device,
        "params": gathered.params_sha256,
        "harness": gathered.harness,
        "git": gathered.captured["git"],
        "host": gathered.executed["host"],
        "environment": sides[PATCH]["environments"][0],
        "sources": {
            side: {"describe": source.describe(values[side]), "sha256": sides[side]["source"]}
            for side in evidence.SIDES
        },
        "hunks": [
            {
                "sha256": hunk.sha256,
                "start": hunk.start,
                "removed": len(hunk.old),
                "added": len(hunk.new),
                "function": dependence.function_at(stock, hunk.start),
                "code": _is_code(stock, found, at),
            }
            for at, hunk in enumerate(found)
        ],
        "rows": [{**asdict(row), "change": row.change} for row in blamed],
    }


def _line(
    pick: Pick,
    found: Sequence[Hunk],
    stock: Mapping[Row, str],
    seen: Mapping[digests.Sha256, Mapping[Row, str]],
) -> Record:
    """Return one pick: what is in it, and how each row ended under it."""
    own = seen.get(pick.sha256, {})
    return {
        "how": pick.how,
        "hunks": [found[at].sha256[:12] for at in sorted(pick.named)],
        "others": [found[at].sha256[:12] for at in sorted(pick.others)],
        "source": pick.sha256,
        "problem": pick.problem,
        "fixes": sum(code == codes.PASS != stock[at] for at, code in own.items()),
        "breaks": sum(code != codes.PASS == stock[at] for at, code in own.items()),
        "rows": [{"case": case, "row": row, "code": code} for (case, row), code in own.items()],
    }


def _write(target: Path, record: Record) -> None:
    """Write both files into a directory that appears whole."""
    partial = runner.partial_of(target)
    try:
        (partial / "bisection.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (partial / "bisection.html").write_text(blame.page(record), encoding="utf-8")
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
