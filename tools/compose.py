"""Writes the drafts of the shipped params files, for ``toppgate freeze`` to freeze: ``python tools/compose.py FILE…``.

A frozen file is never written again: a change of the matrix is a new file, or a new version with a changelog entry.
"""

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors.numpy
from mutant_cases import lessons, mutant_cases

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "tests" / "data" / "rows.json"

KERNEL = "vllm/v1/sample/ops/topk_topp_triton.py"
PINS = {
    "0.30.0": "0b5fc337058e22bc28a8530ccec904d6ccd89b9548b02955c657ac429b1669d2",
    "0.31.0": "c19c0af6a55c72dcb845ca531586faacc987711fc7bf3c5288cc498f923752f4",
    "0.32.0": "d39388245d5d5f54dfdd11ef9285d45b5029054167cfddb6b86961d07d562712",
    "0.33.0": "6264a524884274824b65c3a3a91d4d34418561cde566c31879cb394acd85f2ef",
    "0a1276e": "5b64e1f938c1f5a106a12c7eb30d51e2e1045ead277f5933c0800f761e43c2ae",
    "vllm-sort": "275eb41831b2e43964366495abfc8d222aac121da40245760d36537ac5449f40",
    "transformers": "356184def6cd295ce6d8dbed15fa0105d8b7cdfe83dc1862a66adafd30f684e6",
}
#: The zero-context hunks of 0.31.0 -> 0.33.0 that are commit 0a1276e (contract, section 3).
HUNKS = ("31905c87d2b0", "2966b59403f6", "b62514e7f14e")
HOST = {
    "kind": "sdist",
    "distribution": "vllm",
    "version": "0.31.0",
    "sha256": "dde46f1efbe846e5bd0c5c4ec6ec71842c42254c7ff3d9bebb2a57028715d380",
}
#: What vLLM 0.31.0's own metadata asks for.
WANTS = {"torch": "2.13.0", "triton": "3.7.1"}

#: p differing by row, from 0.1 to 0.999.
PS = ["0.1", "0.3", "0.5", "0.7", "0.8", "0.9", "0.95", "0.999"]


def release(version: str) -> dict[str, Any]:
    """Return the source spec of a published kernel file."""
    return {"kind": "release", "distribution": "vllm", "version": version, "member": KERNEL, "sha256": PINS[version]}


def commit() -> dict[str, Any]:
    """Return the source spec of commit 0a1276e, rebuilt from two releases."""
    base, donor = release("0.31.0"), release("0.33.0")
    return {"kind": "pick", "base": base, "donor": donor, "hunks": list(HUNKS), "sha256": PINS["0a1276e"]}


def vllm_sort() -> dict[str, Any]:
    """Return the source spec of vLLM 0.31.0's own sort implementation, whose text no release of the ladder changed."""
    member = "vllm/v1/sample/ops/topk_topp_sampler.py"
    pin = "c5c7de950e4e1380c97328057aa6a39c86e734c8b2de35beffa9695b705fbba3"
    of = {"kind": "release", "distribution": "vllm", "version": "0.31.0", "member": member, "sha256": pin}
    name = "vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_top_p_pytorch"
    return {"kind": "callable", "callable": name, "of": of, "sha256": PINS["vllm-sort"]}


def transformers() -> dict[str, Any]:
    """Return the source spec of transformers' top-p warper, row by row."""
    name = "examples.transformers_top_p:top_p"
    requires = {"transformers": "5.24.0"}
    return {"kind": "callable", "callable": name, "requires": requires, "sha256": PINS["transformers"]}


def captured(name: str, tensor: str = "logits", **more: Any) -> dict[str, Any]:
    """Return a generator over a file of params/inputs."""
    return {"kind": "file", "path": f"params/inputs/{name}.safetensors", "tensor": tensor, **more}


def forced_and_controls() -> Iterator[dict[str, Any]]:
    """Yield cases 1 to 4."""
    drawn = captured("torch-cpu-seed-42")
    for name, value in (("1e9", "1e9"), ("1e9-over-0.6", repr(1e9 / 0.6))):
        yield {
            "id": f"forced-{name}",
            "about": "Upstream's regression: one token forced over ordinary competitors; it alone must be kept.",
            "role": "forced",
            "rows": {"kind": "forced", "base": {**drawn, "rows": [0, 4]}, "token": 13, "value": value},
            "p": "0.95",
        }
    yield {"id": "control-torch-cpu-seed-42", "role": "control", "rows": {**drawn, "rows": [0, 8]}, "p": PS}
    normal = {"kind": "normal", "seed": "42", "scale": "8", "rows": 8, "vocabulary": 32000}
    yield {"id": "control-normal-seed-42", "role": "control", "rows": normal, "p": PS}


def real_logits() -> Iterator[dict[str, Any]]:
    """Yield cases 5 to 10: the same eight rows in float32 and rounded to bfloat16."""
    for rounding, p in itertools.product(("none", "bfloat16"), ("0.9", "0.95", "0.99")):
        name = "float32" if rounding == "none" else rounding
        yield {
            "id": f"real-{name}-p{p}",
            "about": "Next-token logits of SmolLM2-135M-Instruct, captured beforehand elsewhere.",
            "role": "ordinary",
            "rows": captured("smollm2-135m-logits", rows=[0, 8], round=rounding),
            "p": p,
        }


def reproduction(how: str) -> dict[str, Any]:
    """Return case 11: the stand-in for the retained local case, which was not supplied."""
    return {
        "id": "reproduction",
        "about": "The retained local case: not supplied. Stand-in: the first seed of a declared sequence whose stock "
        f"and patched masks differ, {how}.",
        "role": "reproduction",
        "rows": {"kind": "normal", "scale": "1", "rows": 1, "vocabulary": 32000},
        "p": "0.9",
        "compute_units": 2,
        "select": {"first": "1", "at_most": 4096},
    }


# ------------------------------------------------------------------------------------------- rows.json as cases


def reported(most: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of rows.json with a vocabulary of at most ``most``: those of one report in one launch."""
    listed = json.loads(ROWS.read_text(encoding="utf-8"))["cases"]
    taken = [row for row in listed if row["stage"] != "execution" and length(row) <= most]
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in taken:
        own = row["id"] if row["batch"] > 2 else ""  # a stated batch is a launch of its own
        groups.setdefault((row["report"], length(row), own), []).extend([row] * row["batch"])
    for (report, _, _), rows in groups.items():
        yield launch(report, rows)


def strided() -> dict[str, Any]:
    """Return H21a and H21b of rows.json: rows of a batch that is stored with eight columns of padding."""
    rows = [[{"linspace": [repr(10 + r / 1000), repr(r / 1000 - 10), 4096]}] for r in (*range(7), 15)]
    return {
        "id": "H21a-H21b",
        "about": "vLLM #42684: rows stored with padding between them, each masked as its contiguous copy.",
        "role": "ordinary",
        "rows": {"kind": "literal", "rows": rows},
        "p": "0.95",
        "stride": 4104,
    }


def launch(report: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one case for rows of one report and one length."""
    names = list(dict.fromkeys(row["id"] for row in rows))
    case: dict[str, Any] = {
        "id": names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}",
        "about": f"{report}: {rows[0]['why']}",
        "role": same([role(row) for row in rows]),
        "rows": {"kind": "literal", "rows": [parts(row["logits"]) for row in rows]},
        "p": same([row["p"] for row in rows]),
        "compute_units": 2 * len(rows),  # 2 slices a row, as the other cases have
    }
    tokens = [row["expect"]["kept"][0] if role(row) == "forced" else None for row in rows]
    codes = [row["expect"].get("reject") for row in rows]
    if any(token is not None for token in tokens):
        case["token"] = same(tokens)
    if any(codes):
        case["expect"] = same(codes)
    return case


def role(row: dict[str, Any]) -> str:
    """Return the role that a row's stage gives it."""
    return {"input": "probe", "forced": "forced"}.get(row["stage"], "ordinary")


def same(values: list[Any]) -> Any:
    """Return the one value that all rows share, or the list."""
    return values[0] if all(value == values[0] for value in values) else values


def length(row: dict[str, Any]) -> int:
    """Return a row's vocabulary."""
    logits = row["logits"]
    return len(logits) if isinstance(logits, list) else sum(map(part_length, logits["concat"]))


def part_length(part: dict[str, Any]) -> int:
    """Return the number of values of one part."""
    if "list" in part:
        return len(part["list"])
    if "value" in part:
        return int(part["repeat"])
    return int(part["linspace"][2] if "linspace" in part else part["affine"]["count"])


def parts(logits: Any) -> list[dict[str, Any]]:
    """Return a row's parts with every number as a decimal string."""
    return [part(p) for p in (logits["concat"] if isinstance(logits, dict) else [{"list": logits}])]


def part(given: dict[str, Any]) -> dict[str, Any]:
    """Return one part as params write it."""
    if "list" in given:
        return {"numbers": [decimal(x) for x in given["list"]]}
    if "value" in given:
        return {"value": decimal(given["value"]), "repeat": given["repeat"]}
    if "linspace" in given:
        start, stop, count = given["linspace"]
        return {"linspace": [decimal(start), decimal(stop), count]}
    affine = given["affine"]
    return {"affine": {**{key: decimal(affine[key]) for key in ("start", "step")}, "count": affine["count"]}}


def decimal(value: float | str) -> str:
    """Return the shortest decimal of a binary64 number; ``nan`` and infinities stand as they are."""
    return value if isinstance(value, str) else repr(float(value))


# ------------------------------------------------------------------------------------------- cases for a GPU

BATCHES = (1, 4, 5, 8, 16, 33, 64)
VOCABULARIES = (1024, 32000, 128256, 131072, 151936, 262144)
SCALES = ("1", "3", "8")


def normal(seed: int, batch: int, vocabulary: int, scale: str, rounding: str = "none") -> dict[str, Any]:
    """Return one control of exact bell-shaped rows, p differing by row from 0.1 to 0.999."""
    rows = {"kind": "normal", "seed": str(seed), "scale": scale, "rows": batch, "vocabulary": vocabulary}
    name = f"normal-b{batch}-v{vocabulary}-s{scale}"
    if rounding != "none":
        rows |= {"round": rounding}
        name += f"-{rounding}"
    ps = [PS[(5 + row) % len(PS)] for row in range(batch)]
    return {"id": name, "role": "control", "rows": rows, "p": same(ps)}


def normals() -> Iterator[dict[str, Any]]:
    """Yield every batch with every vocabulary, the scale going round; all scales at batch 8; rounded at 4 and 64."""
    seeds = itertools.count(1000)
    for (i, batch), (j, vocabulary) in itertools.product(enumerate(BATCHES), enumerate(VOCABULARIES)):
        scales = SCALES if batch == 8 else SCALES[(i + j) % 3 : (i + j) % 3 + 1]
        for scale in scales:
            yield normal(next(seeds), batch, vocabulary, scale)
    for rounding, batch, vocabulary in itertools.product(("bfloat16", "float16"), (4, 64), VOCABULARIES):
        yield normal(next(seeds), batch, vocabulary, "3", rounding)


def upstream_draw() -> dict[str, Any]:
    """Return upstream's own seed-42 draw on CUDA; its rows with p = 1.0 are probes."""
    drawn = safetensors.numpy.load_file(ROOT / "params" / "inputs" / "upstream-seed-42-cuda.safetensors")
    ps = [repr(float(p)) for p in drawn["p"]]
    off = [float(p) == 1.0 for p in drawn["p"]]
    return {
        "id": "control-upstream-seed-42-cuda",
        "about": "Logits and p as upstream's own top-p test draws them with seed 42 on CUDA, drawn once and kept.",
        "role": same(["probe" if probe else "control" for probe in off]),
        "rows": captured("upstream-seed-42-cuda"),
        "p": ps,
        "expect": ["invalid_p" if probe else None for probe in off],
    }


def forced_upstream() -> Iterator[dict[str, Any]]:
    """Yield upstream's regression: batch 4 and 64, vocabulary 131072, token 13."""
    for (seed, batch), (name, value) in itertools.product(
        enumerate((4, 64), 500), (("1e9", "1e9"), ("1e9-over-0.6", repr(1e9 / 0.6)))
    ):
        base = {"kind": "normal", "seed": str(seed), "scale": "1", "rows": batch, "vocabulary": 131072}
        forced = {"kind": "forced", "base": base, "token": 13, "value": value}
        yield {"id": f"forced-b{batch}-{name}", "role": "forced", "rows": forced, "p": "0.95"}


def real_on_gpu() -> Iterator[dict[str, Any]]:
    """Yield the real rows alone and tiled to a batch of 64, float32 and bfloat16."""
    for tile, rounding, p in itertools.product((1, 8), ("none", "bfloat16"), ("0.9", "0.95", "0.99")):
        rows = captured("smollm2-135m-logits", rows=[0, 8], round=rounding)
        name = "float32" if rounding == "none" else rounding
        if tile > 1:
            rows |= {"tile": tile}
        yield {"id": f"real-{name}-b{8 * tile}-p{p}", "role": "ordinary", "rows": rows, "p": p}


def shaped() -> Iterator[dict[str, Any]]:
    """Yield near-uniform, adjacent-fp32, huge finite and ladder-aligned rows."""
    near = [{"linspace": ["0.0", "0.001", 131072]}]
    yield {"id": "near-uniform", "role": "ordinary", "rows": literal(near), "p": "0.9"}
    # 2**-23 is the spacing of fp32 in [1, 2): every value differs from the next by one ulp.
    adjacent = [{"affine": {"start": "1.0", "step": repr(2.0**-23), "count": 65536}}]
    yield {"id": "adjacent-fp32", "role": "ordinary", "rows": literal(adjacent), "p": "0.9"}
    huge = [{"linspace": ["-3e38", "3e38", 4096]}]
    yield {"id": "huge-finite", "role": "ordinary", "rows": literal(huge), "p": "0.9"}
    # Probabilities 1/2, 1/4, 1/8 …: tokens sit where a bisecting search puts its pivots.
    ladder: list[dict[str, Any]] = [
        {"affine": {"start": "0.0", "step": repr(-math.log(2.0)), "count": 64}},
        {"value": "-80.0", "repeat": 960},
    ]
    yield {"id": "ladder-aligned", "role": "ordinary", "rows": literal(ladder), "p": "0.875"}


def literal(row: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a generator of one written row, four times."""
    return {"kind": "literal", "rows": [row], "copies": 4}


def over_the_path() -> Iterator[dict[str, Any]]:
    """Yield calls that leave the split path: a batch of 65, and a k.  Both are probes."""
    for name, batch, more in (("batch-65", 65, {}), ("with-k", 8, {"k": 50})):
        rows = {"kind": "normal", "seed": str(batch), "scale": "3", "rows": batch, "vocabulary": 32000}
        yield {"id": name, "role": "probe", "rows": rows, "p": "0.9", "expect": "path_mismatch", **more}


# ------------------------------------------------------------------------------------------- the files


def h200(title: str, patch: dict[str, Any]) -> dict[str, Any]:
    """Return the draft of a comparison on an H200, which has 132 multiprocessors."""
    limits = {"vocabulary": 262144, "batch": 65, "rows": 4096}
    limits |= {"launch_seconds": 120, "total_seconds": 1800, "retained_bytes": 64_000_000}
    rows = [*reported(131072)]
    cases = [
        *forced_upstream(),
        *forced_and_controls(),
        upstream_draw(),
        *normals(),
        *real_on_gpu(),
        seeded(reproduction("alone in its launch"), 145),
    ]
    return {
        **cpu(title, patch),
        "notes": "The GPU's 132 multiprocessors cut a batch of 64 into 2 slices a row.",
        "device": "cuda",
        "compute_units": 132,
        "wants": WANTS,
        "retain_inputs": False,
        "limits": limits,
        "cases": [on_gpu(case) for case in [*cases, *shaped(), *rows, *over_the_path()]],
    }


def h200_lessons(title: str, patch: dict[str, Any]) -> dict[str, Any]:
    """Return the draft of what h200.yml does not hold: rows with a stride, and the cases made for wrong kernels."""
    cases = [*itertools.islice(forced_upstream(), 2), normal(1000, 8, 1024, "1"), strided(), *lessons()]
    return {**h200(title, patch), "cases": [on_gpu(case) for case in cases]}


def never_ends(title: str, patch: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Return the draft of one row that a hunt found to stand still, 64 times, between two ordinary batches."""
    before, after = ({**normal(seed, 64, 32000, "1"), "p": "0.95"} for seed in (1000, 1001))
    behind = "What stands behind a launch that has to be killed is run all the same."
    found = {"id": "never-ends", "role": "ordinary", **row, "selected_by": "hunt"}
    limits = {"vocabulary": 32000, "batch": 64, "rows": 256}
    return {
        **h200(f"A launch that never ends: {title}, on an H200", patch),
        "notes": "One row that a hunt found, in a batch of itself, between two ordinary batches.",
        "limits": limits | {"launch_seconds": 20, "total_seconds": 900, "retained_bytes": 64_000_000},
        "cases": [{**before, "id": "normal-before"}, found, {**after, "id": "normal-after", "about": behind}],
    }


def adjacent() -> dict[str, Any]:
    """Return the row on which stock and commit stand still."""
    about = "Row 1695313, counted from 0, of the hunt of h200.yml with seed 1 on an H200: neighbouring fp32 numbers. "
    about += "No launch of stock or commit with it ended there."
    rows = captured("adjacent-row-1695313", rows=[0, 1], tile=64)
    return {"about": about, "rows": rows, "p": "0.0000625583"}


def near_uniform() -> dict[str, Any]:
    """Return a row on which 0.33.0 stands still."""
    about = "Row 1462286, counted from 0, of the hunt of h200-0.33.0.yml with seed 1 on an H200: logits within 0.0013 "
    about += "of each other. A launch of 0.33.0 with it did not end there."
    rows = captured("near-uniform-row-1462286", rows=[0, 1], tile=64)
    return {"about": about, "rows": rows, "p": "0.000031269272"}


def telling() -> list[dict[str, Any]]:
    """Return the few rows that tell the hunks of 0.31.0 -> 0.33.0 apart, each cut into 2 slices, and a control."""
    forced, _, control, _ = forced_and_controls()
    rows = {"p0.9": [6, 8], "p0.99": [0, 3]}
    real = {case["id"].removeprefix("real-bfloat16-"): case for case in real_logits() if "bfloat16" in case["id"]}
    forced["rows"]["base"]["rows"] = [0, 2]
    control = {**control, "rows": {**control["rows"], "rows": [0, 2]}, "p": ["0.5", "0.9"]}
    cases = [forced, control]
    cases += [{**real[p], "rows": {**real[p]["rows"], "rows": some}} for p, some in rows.items()]
    two = [{**case, "compute_units": 2 * (3 if case["id"].endswith("p0.99") else 2)} for case in cases]
    return [*two, seeded(reproduction(IN_TWO), 81)]


def seeded(case: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the reproduction case with the seed that ``toppgate freeze`` found: 81 on the interpreter, 145 on an H200.

    Written down so that a matrix can be frozen for other kernels, or on a machine without a GPU.
    """
    rows = {"kind": "normal", "seed": str(seed), **{key: case["rows"][key] for key in ("scale", "rows", "vocabulary")}}
    over = f"seeds 1 to {seed - 1} were passed over"
    record = f"the first seed from 1 on whose stock and patched masks differ, oracle not run; {over}"
    return {**{key: case[key] for key in case if key != "select"}, "rows": rows, "selected_by": record}


def on_gpu(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case as a GPU runs it: the device's own compute units."""
    return {key: value for key, value in case.items() if key != "compute_units"}


IN_TWO = "in 2 slices a row, as a batch of 64 has on 132 SMs"


def cpu(title: str, patch: dict[str, Any]) -> dict[str, Any]:
    """Return the draft of a comparison on the interpreter."""
    limits = {"vocabulary": 50000, "batch": 8, "rows": 256}
    limits |= {"launch_seconds": 60, "total_seconds": 900, "retained_bytes": 64_000_000}
    return {
        "schema_version": 1,
        "title": title,
        "notes": "16 compute units cut a batch of 8 into 2 slices a row, as 132 SMs cut a batch of 64, with the plan "
        "that both releases up to 0a1276e have.",
        "device": "interpreter",
        "compute_units": 16,
        "repeat": 2,
        "stock": release("0.31.0"),
        "patch": patch,
        "host": HOST,
        "limits": limits,
        "cases": [*forced_and_controls(), *real_logits(), reproduction(IN_TWO), *reported(4096), strided(), *lessons()],
    }


def compact() -> list[dict[str, Any]]:
    """Return the small matrix: forced rows, half a control, real bfloat16 rows, the reproduction row, written rows."""
    first, second, control, _ = forced_and_controls()
    half = {**control, "rows": {**control["rows"], "rows": [0, 4]}, "p": ["0.1", "0.5", "0.9", "0.999"]}
    bfloat16 = [case for case in real_logits() if "bfloat16" in case["id"]]
    return [first, second, half, *bfloat16, seeded(reproduction(IN_TWO), 81), *reported(4096)]


def smallest() -> list[dict[str, Any]]:
    """Return what of the small matrix shows how a function does: each kind of case once."""
    left = {"forced-1e9-over-0.6", "real-bfloat16-p0.95", "real-bfloat16-p0.99"}
    return [case for case in compact() if case["id"] not in left]


def function(title: str, patch: dict[str, Any]) -> dict[str, Any]:
    """Return the draft of a comparison with a Python function in the patch's place, over the small matrix."""
    notes = "The patch is a Python function, so its launch path is its own call and nothing else."
    return {**cpu(title, patch), "notes": notes, "cases": smallest()}


def ladder(comparison: dict[str, Any], title: str, cases: list[dict[str, Any]], *others: str) -> dict[str, Any]:
    """Return the draft of a ladder: the releases, the commit, and other kernels, over cases and against 0.31.0."""
    kernels = [{"id": version, "source": release(version)} for version in ("0.30.0", "0.31.0", "0.32.0")]
    kernels += [{"id": "0a1276e", "source": commit()}, {"id": "0.33.0", "source": release("0.33.0")}]
    kernels += [{"id": name, "source": OTHERS[name]()} for name in others]
    found = {key: comparison[key] for key in comparison if key not in {"patch", "change", "path", "frozen"}}
    return {**found, "title": title, "retain_inputs": False, "kernels": kernels, "cases": cases}


#: Kernels that are no release of the split kernel.
OTHERS: dict[str, Callable[[], dict[str, Any]]] = {"vllm-sort": vllm_sort, "transformers": transformers}


def ladder_cpu() -> dict[str, Any]:
    """Return the ladder of the interpreter."""
    title = "vLLM's split top-p kernel, 0.30.0 to 0.33.0, and two sorts, against 0.31.0, on the interpreter"
    return ladder(cpu(title, {}), title, compact(), "vllm-sort", "transformers")


def ladder_h200() -> dict[str, Any]:
    """Return the ladder of an H200, over the whole matrix of ``params/h200.yml``."""
    title = "vLLM's split top-p kernel, 0.30.0 to 0.33.0, and vLLM's sort, against 0.31.0, on an H200"
    whole = h200(title, {})
    return ladder(whole, title, whole["cases"], "vllm-sort")


def mutants() -> dict[str, Any]:
    """Return the draft of the matrix that wrong kernels are run over."""
    limits = {"vocabulary": 50000, "batch": 8, "rows": 32}
    limits |= {"launch_seconds": 60, "total_seconds": 180, "retained_bytes": 64_000_000}
    return {
        **cpu("wrong kernels: mutants of commit 0a1276e against vLLM 0.31.0, on the interpreter", commit()),
        "notes": "toppgate mutants edits the patch at run time; the limits on time hold for each mutant.",
        "limits": limits,
        "cases": [*mutant_cases(captured)],
    }


DRAFTS: dict[str, Callable[[], dict[str, Any]]] = {
    "ladder": ladder_cpu,
    "ladder-h200": ladder_h200,
    "hunks": lambda: {
        **cpu("vLLM 0.31.0 against 0.33.0: rows that tell its hunks apart, on the interpreter", release("0.33.0")),
        "cases": telling(),
    },
    "vllm-sort": lambda: function("vLLM 0.31.0's split kernel against its own sort, on the CPU", vllm_sort()),
    "transformers": lambda: function("vLLM 0.31.0's split kernel against transformers' warper", transformers()),
    "mutants": mutants,
    "h200": lambda: h200("vLLM 0.31.0 against commit 0a1276e (PR #58231), on an H200", commit()),
    "h200-lessons": lambda: h200_lessons("rows beside h200.yml: 0.31.0 against commit 0a1276e, on an H200", commit()),
    "h200-0.33.0": lambda: h200("vLLM 0.31.0 against 0.33.0, on an H200", release("0.33.0")),
    "h200-hang": lambda: never_ends("vLLM 0.31.0 against commit 0a1276e", commit(), adjacent()),
    "h200-hang-0.33.0": lambda: never_ends("vLLM 0.31.0 against 0.33.0", release("0.33.0"), near_uniform()),
    "cpu": lambda: cpu("vLLM 0.31.0 against commit 0a1276e (PR #58231), on the interpreter", commit()),
    "cpu-0.33.0": lambda: cpu("vLLM 0.31.0 against 0.33.0, on the interpreter", release("0.33.0")),
}


def main() -> None:
    """Write the drafts that are named."""
    for name in sys.argv[1:]:
        path = ROOT / "params" / f"{name}.yml"
        with path.open("x", encoding="ascii") as file:  # JSON is YAML; freeze writes its own form over it
            json.dump(DRAFTS[name](), file, indent=1)
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
