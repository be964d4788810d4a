"""HTML fragments: templates with autoescape, and how a value is written in them.

A fragment is complete without JavaScript and without its style sheet; ``pages`` adds the style.  Values are plain
JSON; a key that is missing, or null, is a dash on the page and false in a condition, so it is never shown as passed.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np
from jinja2 import ChainableUndefined, Environment, PackageLoader
from markupsafe import Markup, escape

from toppgate import codes

Record = Mapping[str, Any]

MISSING: Final = "–"


def fragment(name: str, **values: Any) -> Markup:
    """Return the template ``name`` filled with ``values``, which are escaped."""
    return Markup(TEMPLATES.get_template(f"{name}.html.j2").render(**values))  # noqa: S704 - autoescaped below


def row_id(case: object, row: object = None) -> str:
    """Return the HTML id of a row, or of a case; different rows have different ids.

    Letters, digits, ``.``, ``-`` stay; any other character becomes ``_`` and its code point in hex and ``_``.
    """
    slug = re.sub(r"[^A-Za-z0-9.-]", lambda match: f"_{ord(match[0]):x}_", str(case))
    return f"case:{slug}" if row is None else f"{slug}-{row}"


def passed(row: Record) -> bool:
    """Tell whether a row's code is exactly ``pass``."""
    return row.get("code") == codes.PASS


def sentence(code: object) -> str:
    """Return the plain sentence of a stop code."""
    return codes.SENTENCES.get(str(code), "This version of toppgate does not know the code.")


def at(row: Record, path: Sequence[str]) -> Any:
    """Return the value at a path of keys, or None."""
    value: Any = row
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def listed(value: Any) -> list[Any]:
    """Return a list as it is, and anything else as the only one."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def spans(numbers: Sequence[int]) -> str:
    """Write rising numbers with those that follow each other together: ``0 to 3, 7, 8``."""
    groups = [
        [number for _, number in group] for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    written = [f"{group[0]} to {group[-1]}" if len(group) > 2 else ", ".join(map(str, group)) for group in groups]
    return ", ".join(written)


def named(rows: Sequence[int]) -> str:
    """Write row numbers with their noun: ``row 3``, ``rows 0 to 63``."""
    return f"row{'' if len(rows) == 1 else 's'} {spans(rows)}"


def plural(number: int, word: str) -> str:
    """Write a number with its noun: ``1 row``, ``1,024 rows``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def short(value: object, most: int = 120) -> str:
    """Write a value, cut after ``most`` characters."""
    text = str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def runs(values: Iterable[object]) -> str:
    """Write equal neighbours once: ``forced × 4, control``."""
    found = [(MISSING if value is None else value, len(list(group))) for value, group in groupby(values)]
    if len(found) == 1:
        return short(found[0][0])
    return short(", ".join(f"{value} × {size}" if size > 1 else f"{value}" for value, size in found), most=240)


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _real(value: Any) -> str:
    """Write four significant digits, and the whole value a pointer away."""
    if not isinstance(value, int | float):
        return str(value)
    rounded = f"{value:.4g}"
    whole = float(rounded) == value
    return rounded if whole else Markup('<span title="{}">{}</span>').format(repr(value), rounded)


def _fp32(value: Any) -> str:
    """Write the shortest decimal that gives the fp32 number back."""
    return str(np.float32(value)) if isinstance(value, float) else str(value)


def _probability(value: Any) -> str:
    """Write the shortest decimal of the fp32 number, and its binary64 value a pointer away."""
    if not isinstance(value, float):
        return str(value)
    return Markup('<span title="{}">{}</span>').format(repr(value), _fp32(value))


def _breakable(value: Any) -> Markup:
    """Write a code so that a narrow column may break it after an underscore."""
    return escape(str(value)).replace("_", Markup("_<wbr>"))


WRITERS: Final[dict[str, Callable[[Any], str]]] = {
    "p": _probability,
    "fp32": _fp32,
    "count": _count,
    "real": _real,
    "flag": lambda value: {True: "yes", False: "no"}.get(value, str(value)),
    "text": _breakable,
    "digest": lambda value: Markup('<code title="{}">{}</code>').format(value, str(value)[:12]),
}


def _write(value: Any, kind: str) -> str:
    return MISSING if value is None or isinstance(value, _Missing) else WRITERS[kind](value)


class _Missing(ChainableUndefined):
    """A key that a record lacks."""

    def __str__(self) -> str:
        return MISSING


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("toppgate", "templates/fragments"),
        autoescape=True,
        undefined=_Missing,
        finalize=lambda value: MISSING if value is None else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(write=_write, at=lambda row, column: at(row, column.path))
    environment.globals.update(row_id=row_id, passed=passed, sentence=sentence, plural=plural)
    return environment


TEMPLATES: Final = _environment()
