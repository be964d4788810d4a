"""What a run's device did, to HTML fragments: wall time, and on CUDA the binaries, launch times and rows alone."""

import statistics
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from toppgate.fragments import Record, fragment


def summary(captured: Record, executed: Record, rows: int) -> Markup:
    """Return a paragraph: where the wall time went, rows a second and, on CUDA, what the fix costs."""
    return fragment(
        "device",
        seconds={"capture": captured.get("wall_seconds"), **(executed.get("seconds") or {})},
        rate=_rate(executed, rows),
        ratio=ratios(executed),
        alone=alone(executed),
        binaries=sum(len(side.get("binaries") or {}) for side in (executed.get("sides") or {}).values()),
        environment=_environment(executed),
    )


def details(executed: Record) -> Markup:
    """Return the compiled binaries of each side, and launch times case by case; empty under the interpreter."""
    timing = executed.get("timing")
    if not timing:
        return Markup("")
    return fragment("launches", binaries=list(_binaries(executed)), times=list(_times(timing)), timing=timing)


def ratios(executed: Record) -> dict[str, float] | None:
    """Return the median, least and largest of patch over stock, kernel time a call, over all cases timed."""
    found = [patch / stock for _, stock, patch in _times(executed.get("timing") or {}) if stock > 0]
    if not found:
        return None
    return {"cases": len(found), "median": statistics.median(found), "least": min(found), "largest": max(found)}


def alone(executed: Record) -> dict[str, int] | None:
    """Return how many rows were launched alone too, and how many of them were then masked otherwise."""
    cases = ((executed.get("timing") or {}).get("cases") or {}).values()
    flags = [same for case in cases for same in case["alone"]]
    return {"rows": len(flags), "differ": flags.count(False)} if flags else None


def _rate(executed: Record, rows: int) -> float | None:
    """Rows a second through both sides, all repeats, compiling left out."""
    seconds = (executed.get("seconds") or {}).get("stock and patch")
    return rows / seconds if seconds else None


def _environment(executed: Record) -> Record:
    seen = ((executed.get("sides") or {}).get("stock") or {}).get("environments") or [{}]
    found: Record = seen[0]
    return found


def _times(timing: Record) -> Iterator[tuple[str, float, float]]:
    for case, found in (timing.get("cases") or {}).items():
        yield case, found["microseconds"]["stock"], found["microseconds"]["patch"]


def _binaries(executed: Record) -> Iterator[dict[str, Any]]:
    for side, record in (executed.get("sides") or {}).items():
        for digest, binary in (record.get("binaries") or {}).items():
            yield {"side": side, "sha256": digest, **binary}
