"""``toppgate mutants``: wrong kernels, each run over a frozen matrix and judged in the patch's seat.

A kill is a stop, (case, row, code), that the unmutated patch does not have.  What is not killed is *survived*, whatever
is known about it; only a written argument together with a search that found no difference makes it *equivalent*.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from toppgate import (
    codes,
    digests,
    evidence,
    execute,
    host,
    judge,
    kills,
    mutate,
    oracle,
    published,
    search,
    seats,
    source,
)
from toppgate import run as runner
from toppgate.errors import RunError
from toppgate.evidence import Evidence
from toppgate.execute import Told
from toppgate.mutate import Mutant
from toppgate.schema import Params
from toppgate.search import Searched

Record = dict[str, Any]

OUTCOMES: Final = ("killed", "equivalent", "survived")


@dataclass(frozen=True)
class Stop:
    """A row that stopped."""

    case: str
    row: int
    code: str


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant; ``kills`` in frozen order."""

    mutant: Mutant
    source: digests.Sha256
    kills: tuple[Stop, ...]
    searched: Searched | None = None

    @property
    def outcome(self) -> str:
        """One of ``OUTCOMES``."""
        if self.kills:
            return "killed"
        found = self.searched
        alike = found is not None and found.difference is None and found.rows >= search.ROWS
        return "equivalent" if alike and self.mutant.equivalence else "survived"


def mutants(
    path: Path,
    out: Path | None,
    catalogue: Sequence[Mutant],
    *,
    only: Sequence[str] = (),
    searching: bool = False,
    told: Told = str,
) -> tuple[Path, Record]:
    """Run a catalogue over a frozen params file; write and return ``mutants.json``, and ``mutants.html``.

    Parameters
    ----------
    path : a frozen params file
    out : where both files go; None for ``reports/<params stem>``.  Nothing is overwritten
    only : names of mutants; the others are left out, and the record says so.  Empty for the whole catalogue
    searching : search for a difference, on many rows, for each mutant that no row killed
    told : is given the name of each kernel that is done

    Raises
    ------
    ToppgateError : the params, a source, a name or an edit cannot be used; or stock or the unmutated patch did not
        deliver every case, so nothing could be compared with it
    """
    if unknown := sorted(set(only) - {mutant.name for mutant in catalogue}):
        raise RunError(f"--only {unknown[0]}: no mutant of this name is in the catalogue")
    chosen = [mutant for mutant in catalogue if mutant.name in only or not only]
    target = (out or Path("reports") / path.stem).absolute()
    checked = runner.prepare(path, target)
    provided = host.provide(checked.host.model_dump(mode="json", exclude_unset=True), published.cache())
    texts = {name: _resolve(checked, name) for name in evidence.SIDES}
    wrong = {each.name: mutate.apply(texts["patch"].decode(), each).encode() for each in chosen}
    with tempfile.TemporaryDirectory(prefix="toppgate-") as scratch:
        found = _execute(Path(scratch) / "run", checked, {**texts, **wrong}, provided, told)
        own, outcomes = _judge(found, chosen)
        if searching:
            seek = partial(search.search, provided, texts["patch"], scratch=Path(scratch), rows=search.ROWS)
            outcomes = [_searched(each, wrong[each.mutant.name], seek, told) for each in outcomes]
    record = _record(found, own, outcomes, len(catalogue))
    _write(target, record)
    return target, record


def _resolve(checked: Params, side: str) -> bytes:
    return source.resolve(getattr(checked, side).model_dump(mode="json", exclude_unset=True), published.cache()).data


def _execute(directory: Path, checked: Params, texts: Mapping[str, bytes], provided: host.Host, told: Told) -> Evidence:
    """Capture once, run every text over it, and return what a run of that many sides holds."""
    run = seats.captured(directory, checked)
    return seats.evidence_of(run, execute.run_texts(run, texts, provided, told), provided)


# ---------------------------------------------------------------------------------------------- judging


def _judge(found: Evidence, catalogue: Sequence[Mutant]) -> tuple[list[Stop], list[Outcome]]:
    """Return the unmutated patch's own stops, and every mutant's outcome."""
    reference = judge.Remembered()
    own = _stops(found, "patch", reference)
    for stop in own:
        if stop.code in codes.EVIDENCE:
            detail = next(found.case(case).detail for case in found.params.cases if case.id == stop.case)
            raise RunError(f"nothing can be compared: case {stop.case}: {stop.code} without any mutation: {detail}")
    sides = found.executed["sides"]
    outcomes = []
    for mutant in catalogue:
        seen = [stop for stop in _stops(found, mutant.name, reference) if stop not in own]
        outcomes.append(Outcome(mutant, sides[mutant.name]["source"], tuple(seen)))
    return own, outcomes


def _stops(found: Evidence, side: str, reference: Callable[..., oracle.Reference]) -> list[Stop]:
    return [
        Stop(case.id, row, judged.code)
        for case in found.params.cases
        for row, judged in enumerate(judge.decide(case, found.case(case, patch=side), reference))
        if judged.code != codes.PASS
    ]


def _searched(each: Outcome, text: bytes, seek: Callable[[bytes], Searched], told: Told) -> Outcome:
    if each.kills:
        return each
    told(f"a search for {each.mutant.name}")
    return replace(each, searched=seek(text))


# ---------------------------------------------------------------------------------------------- the record


def _record(found: Evidence, own: list[Stop], outcomes: list[Outcome], catalogue: int) -> Record:
    values = found.params.values()
    environment = found.executed["sides"]["patch"]["environments"][0]
    ended = [each.outcome for each in outcomes]
    by_evidence = [each for each in outcomes if each.kills and all(k.code in codes.EVIDENCE for k in each.kills)]
    return {
        "schema": "toppgate/mutants/1",
        "title": found.params.title,
        "device": found.params.device,
        "params": found.params_sha256,
        "harness": found.harness,
        "git": found.captured["git"],
        "host": found.executed["host"],
        "environment": environment,
        "sources": {
            side: {"describe": source.describe(values[side]), "sha256": found.executed["sides"][side]["source"]}
            for side in evidence.SIDES
        },
        "catalogue": catalogue,
        "mutants": len(outcomes),
        **{name: ended.count(name) for name in OUTCOMES},
        "killed_by_evidence_alone": len(by_evidence),
        "rows": sum(case.batch for case in found.params.cases),
        "cases": [
            {"id": c.id, "about": c.about, "rows": c.batch, "vocabulary": c.vocabulary} for c in found.params.cases
        ],
        "patch_stops": [asdict(stop) for stop in own],
        "table": [_line(each) for each in outcomes],
    }


def _line(each: Outcome) -> Record:
    mutant = each.mutant
    return {
        **{key: getattr(mutant, key) for key in ("name", "family", "function", "about", "equivalence")},
        "source": each.source,
        "outcome": each.outcome,
        "kills": [asdict(kill) for kill in each.kills],
        "searched": None if each.searched is None else asdict(each.searched),
    }


def _write(target: Path, record: Record) -> None:
    """Write both files into a directory that appears whole."""
    partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.partial-", dir=_parent(target)))
    try:
        (partial / "mutants.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (partial / "mutants.html").write_text(kills.page(record), encoding="utf-8")
        partial.chmod(0o755)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _parent(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.parent
