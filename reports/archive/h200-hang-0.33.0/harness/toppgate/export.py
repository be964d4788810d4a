"""A row to attach to an issue: its bytes, the tokens expected and observed, a script that shows it, and a page of text.

What is written is exploratory, not evidence: evidence is a sealed run.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import safetensors.numpy

from toppgate import codes, source, trace
from toppgate.errors import RunError
from toppgate.row import Row, specs
from toppgate.shrink import Examined, Shrunk

#: Token ids that the text lists, of each kind.
LISTED: Final = 24

#: The script, which stands on its own.
SCRIPT: Final = Path(__file__).with_name("reproduce.py")
ROW: Final = "row.safetensors"
TEXT: Final = "row.md"


def check(directory: Path) -> None:
    """Refuse to write where there is something already.  Raises ``RunError``."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise RunError(f"{directory}: is there already; a row is exported to a new directory")


def export(row: Row, found: Examined, directory: Path, shrunk: Shrunk | None = None) -> tuple[str, ...]:
    """Write a row, ``found`` being what its kernels make of it, or of what it shrank to; return the files' names.

    Raises ``RunError`` as ``check`` does.  Side effects: the directory.
    """
    check(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        "logits": found.logits[np.newaxis],
        "p": np.array([row.p]),
        "slices": np.array([row.slices(row.side)], np.int32),
        "expected": np.sort(found.reference.order[: found.reference.count]).astype(np.int32),
        "observed": np.flatnonzero(found.outputs[row.side].kept).astype(np.int32),
    }
    (directory / ROW).write_bytes(safetensors.numpy.save(tensors))
    shutil.copyfile(SCRIPT, directory / SCRIPT.name)
    (directory / TEXT).write_text("\n".join(_text(row, found, shrunk)) + "\n", encoding="utf-8")
    return ROW, SCRIPT.name, TEXT


def _text(row: Row, found: Examined, shrunk: Shrunk | None) -> Iterator[str]:
    kept, count = found.outputs[row.side], found.reference.count
    yield f"# {row.side} keeps {kept.size} tokens, a binary64 reference {count}"
    yield ""
    yield f"Exploratory, not evidence. {row.name} of a run of toppgate, *{row.params.title}*: `{found.fault.code}`."
    yield codes.SENTENCES[found.fault.code]
    yield ""
    spec = specs(row.params)[row.side]
    yield f"- kernel: {source.describe(spec)}, sha256 {spec.get('sha256')}"
    yield f"- seen: in Triton's interpreter on a CPU, the row alone, in {row.slices(row.side)} slices"
    yield f"- the run: device {row.params.device}"
    yield f"- p = {row.p!s} (fp32); {', '.join(f'{name} {value}' for name, value in found.size.items())}"
    named = {name: f"{name} ({source.describe(spec)})" for name, spec in specs(row.params).items()}
    passing = ", ".join(named[name] for name in sorted(found.passing - {row.side})) or "none"
    yield f"- kernels at hand that pass on this row: {passing}"
    for line in () if shrunk is None else shrunk_lines(shrunk):
        yield f"- {line}"
    oracle = found.reference.kept()
    for said, tokens in (
        ("kept and not expected", kept.kept & ~oracle),
        ("expected and not kept", oracle & ~kept.kept),
    ):
        ids = np.flatnonzero(tokens)
        more = f" and {ids.size - LISTED} more" if ids.size > LISTED else ""
        yield f"- {said}: {', '.join(map(str, ids[:LISTED])) or 'none'}{more}"
    yield ""
    yield "`python reproduce.py` runs it on the installed vLLM; with `TRITON_INTERPRET=1` no GPU is needed."
    yield ""
    yield "```text"
    yield from trace.lines(found.trace, found.explained)
    yield "```"


def shrunk_lines(shrunk: Shrunk) -> Iterator[str]:
    """Yield how far a row was shrunk, in words."""
    yield f"shrunk in {shrunk.seconds:.0f} s, {shrunk.tried} rows tried: {shrunk.sizes}"
    fault = shrunk.small.fault
    way = "too many" if fault.sign > 0 else "too few"
    yield f"what stayed: {fault.code}; {way} tokens, by the kernel's {fault.part}; {_passing(shrunk.whole)}"


def _passing(found: Examined) -> str:
    return f"still passing: {', '.join(sorted(found.passing))}" if found.passing else "no kernel at hand passes"
