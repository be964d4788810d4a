"""How fast the oracle's engines are, beside the literal specification and a float64 top-p in torch.

    python benchmarks/oracle.py [--rounds 7] [--spec-rounds 1]

Needs the extras kernel (torch) and fast (numba).  Prints Markdown: medians in milliseconds a row, over rounds in which
every contender works on the same rows once, so that other work on the machine slows all of them alike; and ratios
against torch with as many threads, on the clock and in processor time.  torch's answer is a stable sort, a softmax and
a cumulative sum in float64: what people use, without the certificate.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from toppgate import accel, fp32, oracle, spec

Batch = NDArray[np.float32]
REAL = Path(__file__).parents[1] / "params" / "inputs" / "smollm2-135m-logits.safetensors"
VOCABULARIES = (32_000, 131_072, 262_144)
P = 0.9
CORES = joblib.cpu_count()


def rows(name: str, vocabulary: int, batch: int) -> Batch:
    """Return a batch of one kind.  Real rows have 49,152 logits: they are cut, or joined to the length wanted."""
    rng = np.random.default_rng(vocabulary)
    if name.startswith("real"):
        joined = np.tile(load_file(REAL)["logits"].ravel(), 2)
        starts = 49_152 * np.arange(batch)
        made = np.stack([joined[start : start + vocabulary] for start in starts % (joined.size // 2)])
    else:
        made = (rng.standard_normal((batch, vocabulary)) * float(name.split()[1])).astype(np.float32)
    return fp32.round_to(made, "bfloat16") if "bfloat16" in name else np.ascontiguousarray(made)


def torch_top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Return how many tokens a float64 top-p keeps, row by row."""
    ranked = torch.sort(logits.double(), dim=-1, descending=True, stable=True).values
    return (ranked.softmax(dim=-1).cumsum(dim=-1) < p).sum(dim=-1) + 1


def contenders(logits: Batch) -> dict[str, Callable[[], object]]:
    """Return what runs on a batch, by name; the specification gets its first row."""
    p = np.full(len(logits), P, np.float32)
    tensor = torch.from_numpy(logits)

    def torch_with(threads: int) -> None:
        torch.set_num_threads(threads)
        torch_top_p(tensor, float(p[0]))

    return {
        "specification": lambda: spec.specification(logits[0], p[0]),
        "default": lambda: oracle.references(logits, p),
        "compiled, 1 thread": lambda: accel.references(logits, p, threads=1),
        "torch, 1 thread": lambda: torch_with(1),
        f"compiled, {CORES} threads": lambda: accel.references(logits, p, threads=CORES),
        f"torch, {CORES} threads": lambda: torch_with(CORES),
    }


class Time(NamedTuple):
    """Median milliseconds a row: on the clock, and of the processor, which other work on the machine slows less."""

    clock: float
    processor: float


def medians(logits: Batch, rounds: int, spec_rounds: int) -> dict[str, Time]:
    """Return the times of each contender, after one round that does not count."""
    found: dict[str, list[Time]] = {}
    for number in range(rounds + 1):
        for name, work in contenders(logits).items():
            if name == "specification" and number > spec_rounds:
                continue
            clock, processor = time.perf_counter(), time.process_time()
            work()
            spent = Time(time.perf_counter() - clock, time.process_time() - processor)
            if number:
                found.setdefault(name, []).append(spent)
    scale = {name: 1e3 / (1 if name == "specification" else len(logits)) for name in found}
    return {
        name: Time(*(scale[name] * statistics.median(column) for column in zip(*times, strict=True)))
        for name, times in found.items()
    }


def ratios(times: Sequence[float]) -> str:
    """Return the ratios that the page's head explains, of the contenders in their order."""
    literal, default, one, torch_one, many, torch_many = times
    return f"{literal / default:.0f}, {torch_one / default:.2f}, {torch_one / one:.1f}, {torch_many / many:.1f}"


def comparison(rounds: int, spec_rounds: int) -> Iterator[str]:
    """Yield the table of milliseconds and ratios."""
    yield (
        f"| rows | V | specification | default | compiled | torch | compiled × {CORES} | torch × {CORES} "
        "| ratios | ratios, processor time |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---|---|"
    for name in ("normal 1", "normal 3", "normal 8", "normal 3 bfloat16", "real", "real bfloat16"):
        for vocabulary in VOCABULARIES:
            times = medians(rows(name, vocabulary, 8 if vocabulary > 100_000 else 16), rounds, spec_rounds).values()
            values = " | ".join(f"{each.clock:.3g}" for each in times)
            clock, processor = (ratios(column) for column in zip(*times, strict=True))
            yield f"| {name} | {vocabulary:,} | {values} | {clock} | {processor} |"


def growth(rounds: int) -> Iterator[str]:
    """Yield how time grows with rows, and with the vocabulary."""
    yield "| rows of 32,000, normal 3; processor time | default, ms | compiled, 1 thread, ms |"
    yield "|---:|---:|---:|"
    for batch in (1, 4, 16, 64):
        ms = medians(rows("normal 3", 32_000, batch), rounds, 0)
        yield f"| {batch} | {batch * ms['default'].processor:.3g} | {batch * ms['compiled, 1 thread'].processor:.3g} |"
    yield ""
    yield "| V, normal 3; processor time | default, ns a token | compiled, 1 thread, ns a token |"
    yield "|---:|---:|---:|"
    for vocabulary in (2_048, 8_192, 32_768, 131_072, 524_288):
        ms = medians(rows("normal 3", vocabulary, 4), rounds, 0)
        default, one = (1e6 * ms[name].processor / vocabulary for name in ("default", "compiled, 1 thread"))
        yield f"| {vocabulary:,} | {default:.1f} | {one:.1f} |"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count (default 7)")
    parser.add_argument("--spec-rounds", type=int, default=1, help="rounds of the specification (default 1)")
    asked = parser.parse_args()
    if accel.engine() is None:
        raise SystemExit("the compiled engine is not there: install the extra fast")
    versions = f"numpy {np.__version__}, torch {torch.__version__}"
    print(f"{CORES} cores, {versions}; median ms a row of {asked.rounds} rounds.")
    print("Ratios: specification ÷ default; torch ÷ default, 1 thread; torch ÷ compiled, 1 thread, and all cores.\n")
    for line in comparison(asked.rounds, asked.spec_rounds):
        print(line, flush=True)
    print()
    for line in growth(asked.rounds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
