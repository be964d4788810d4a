"""An explored row as HTML fragments, one a section; ``explore`` and ``trace`` have computed all that they say."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from markupsafe import Markup

from toppgate import codes, pictures, sketch, trace
from toppgate.errors import ToppgateError
from toppgate.explore import Explored, Searched
from toppgate.trace import Round, Trace

#: One section of a row.
Section = Callable[[Explored], str]


def head(explored: Explored) -> str:
    """Return which row it is, its code, and its counts."""
    row = explored.row
    code = row.table["code"]
    said = "Passed." if code == codes.PASS else codes.SENTENCES[code]
    cells = [(cut.name, f"{cut.count:,}", "yes" if cut.prefix else "no", *_spare(cut)) for cut in explored.cuts]
    table = _table(("set", "tokens kept", "a prefix", "mass less p", "… without its lowest token"), cells)
    return Markup("<h3>{}: <code>{}</code></h3><p>{} p = {} in fp32, {:,} tokens.</p>{}").format(
        row.name, code, said, str(row.p), row.logits.size, table
    )


def _spare(cut: Any) -> tuple[str, str]:
    return f"{cut.spare:+.3e}", f"{cut.shorter:+.3e}" + (" still reaches p" if cut.shorter >= 0 else "")


def logits(explored: Explored) -> str:
    """Return the picture of the sorted logits around the boundary."""
    counts = ", ".join(f"{cut.name} keeps {cut.count:,}" for cut in explored.cuts)
    return pictures.figure(sketch.logits(explored), f"Sorted logits around the boundary: {counts}.")


def mass(explored: Explored) -> str:
    """Return the picture of cumulative mass against p."""
    spare = ", ".join(f"{cut.name} {cut.spare:+.2e}" for cut in explored.cuts)
    return pictures.figure(sketch.mass(explored), f"Mass of the sorted row's prefixes less p. At the cuts: {spare}.")


def ties(explored: Explored) -> str:
    """Return the tie group: its logit, its ranks, and how many of it each set keeps."""
    group = explored.ties
    size = group.last - group.first + 1
    cells = [(name, f"{kept:,} of {size:,}") for name, kept in group.kept.items()]
    said = Markup("<p>{:,} tokens have the boundary's logit, {}: ranks {:,} to {:,}.</p>")
    return said.format(size, f"{group.logit:.9g}", group.first, group.last) + _table(("set", "of them kept"), cells)


def moved(explored: Explored) -> str:
    """Return what changes when p moves by one ulp."""
    if explored.searched is None:
        return Markup("<p>No kernel was run.</p>")
    cells = [(each.by, f"{each.p:.9g}", f"{each.oracle:,}", f"{each.kernel:,}") for each in explored.searched.moved]
    kept = f"{explored.searched.side} keeps"
    return _notice(explored.searched) + _table(("p", "value", "oracle keeps", kept), cells)


def search(explored: Explored) -> str:
    """Return the trace: how the search went, a table a round, and why the mask is as it is."""
    found = explored.searched
    if found is None:
        return Markup("<p>No kernel was run.</p>")
    parts = [_notice(found), _conclusion(found)]
    if found.trace.rounds:
        alt = f"The search over {len(found.trace.rounds)} rounds; it ended so: {found.trace.ending}."
        parts.append(pictures.figure(sketch.search(found.trace), alt))
    for number, each in enumerate(found.trace.rounds, 1):
        last = number == len(found.trace.rounds)
        parts.append(_round(number, each, found.trace, shown=last))
    if found.blocks:
        parts.append(_blocks(found))
    return Markup("").join(parts)


def _blocks(found: Searched) -> Markup:
    """Return where the ties are, block by block, and how many of each stay."""
    rows = [(f"{each.slice_number}", f"{each.first:,}", f"{each.ties:,}", f"{each.kept:,}") for each in found.blocks]
    said = Markup("<p>Of {:,} ties {:,} may be kept. Block by block:</p>").format(found.trace.ties, found.trace.budget)
    return said + _table(("slice", "block from token", "ties", "kept"), rows)


#: What a notebook shows, in order.
SECTIONS: Final[dict[str, Section]] = {
    "head": head,
    "logits": logits,
    "mass": mass,
    "ties": ties,
    "moved": moved,
    "search": search,
}


def failure(error: ToppgateError) -> str:
    """Return why a row cannot be taken apart."""
    return Markup("<p>{}</p>").format(error)


def _notice(found: Searched) -> Markup:
    same = "the mask is the run's" if found.same_mask else "the mask is not the run's"
    said = "<p><strong>Exploratory, not evidence.</strong> {}, the row alone, in Triton's interpreter: {}.</p>"
    return Markup(said).format(found.side, same)  # noqa: S704 - a literal


def _conclusion(found: Searched) -> Markup:
    seen = found.trace
    said = [f"The search: {seen.ending}. {trace.ENDINGS[seen.ending][0].upper()}{trace.ENDINGS[seen.ending][1:]}."]
    if not seen.whole_row:
        said.append(
            f"Pivot {seen.pivot!s}, mass above {seen.mass!s}, p {seen.p!s}; of {seen.ties:,} ties at {seen.tie!s} "
            f"{seen.budget:,} may be kept."
        )
    if found.exact_mass is not None and seen.mass is not None:
        error = float(seen.mass) - found.exact_mass
        said.append(
            f"The mass above is {found.exact_mass:.9g} in binary64: the kernel's sums in fp32 are {error:+.2e} off."
        )
    said += trace.verdict_lines(found.explained)
    return Markup("<ul>{}</ul>").format(Markup("").join(Markup("<li>{}</li>").format(line) for line in said))


def _round(number: int, found: Round, seen: Trace, *, shown: bool) -> Markup:
    """Return one round's ladder as a table, open where ``shown``."""
    slices = range(len(found.slice_mass))
    names = (
        "pivot",
        "mass above",
        "less its ties",
        "smallest above",
        "ties",
        "",
        *(f"slice {n}: mass" for n in slices),
    )
    rows = []
    for slot, pivot in enumerate(found.pivots):
        less = found.mass[slot] - found.smallest[slot] * found.ties[slot]
        mark = "chosen" if slot == found.chosen else "reaches p" if found.mass[slot] >= seen.p else ""
        numbers = (f"{pivot:.8g}", f"{found.mass[slot]:.8g}", f"{less:.8g}", f"{found.smallest[slot]:.8g}")
        by_slice = (f"{value:.7g}" for value in found.slice_mass[:, slot])
        rows.append((*numbers, f"{found.ties[slot]:,.0f}", mark, *by_slice))
    said = f"Round {number}: bracket {found.low:.8g} to {found.high:.8g}"
    opened = Markup(" open") if shown else ""
    return Markup("<details{}><summary>{}</summary>{}</details>").format(opened, said, _table(names, rows))


def _table(names: Iterable[str], rows: Iterable[Iterable[str]]) -> Markup:
    """Return a table whose first column heads its rows."""
    style = Markup('style="text-align: right; padding: 0.15em 0.8em"')  # a widget has no style sheet of its own
    columns = Markup("").join(Markup('<th scope="col" {}>{}</th>').format(style, name) for name in names)
    body = Markup("").join(
        Markup('<tr><th scope="row" {}>{}</th>{}</tr>').format(
            style, first, Markup("").join(Markup("<td {}>{}</td>").format(style, cell) for cell in rest)
        )
        for first, *rest in rows
    )
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(columns, body)
