"""The record of ``toppgate mutants`` to one HTML page: counts, the kill table, families, cases."""

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from toppgate import pages
from toppgate.fragments import Record, fragment


def page(record: Record) -> str:
    """Return ``mutants.html``.  Nothing is decided here: outcomes are the record's own."""
    title = f"Wrong kernels: {record['killed']} of {record['mutants']} killed"
    families, cases = list(_families(record)), list(_cases(record))
    return pages.compose(title, fragment("mutants", record=record, families=families, cases=cases))


def _families(record: Record) -> Iterator[Record]:
    for name, lines in groupby(record["table"], key=lambda line: line["family"]):
        ended = Counter(line["outcome"] for line in lines)
        yield {"name": name, "mutants": ended.total(), **ended}


def _cases(record: Record) -> Iterator[Record]:
    """Each case with the number of mutants that it killed, and of those that no other case killed."""
    by = [{kill["case"] for kill in line["kills"]} for line in record["table"]]
    for case in record["cases"]:
        killed = [cases for cases in by if case["id"] in cases]
        yield {**case, "killed": len(killed), "alone": sum(len(cases) == 1 for cases in killed)}


def lines(record: Record) -> Iterator[str]:
    """Yield the record as text for a terminal: counts, and every mutant that was not killed."""
    if record["mutants"] < record["catalogue"]:
        yield f"chosen      {record['mutants']} of the {record['catalogue']} of the catalogue"
    for name in ("mutants", "killed", "equivalent", "survived"):
        yield f"{name:11} {record[name]}"
    for line in record["table"]:
        if line["outcome"] != "killed":
            yield f"{line['outcome']:11} {line['name']} ({line['family']}): {line['about']}{_search(line['searched'])}"


def _search(searched: Any) -> str:
    if searched is None:
        return ""
    where = f"{searched['rows']} rows searched ({searched['device']})"
    return f" {where}: {searched['difference'] or 'no difference'}."
