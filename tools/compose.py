"""Writes the drafts of the shipped params files, for ``toppgate freeze`` to freeze: ``python tools/compose.py FILE…``.

A frozen file is never written again: a change of the matrix is a new file, or a new version with a changelog entry.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "tests" / "data" / "rows.json"

KERNEL = "vllm/v1/sample/ops/topk_topp_triton.py"
PINS = {
    "0.31.0": "c19c0af6a55c72dcb845ca531586faacc987711fc7bf3c5288cc498f923752f4",
    "0.33.0": "6264a524884274824b65c3a3a91d4d34418561cde566c31879cb394acd85f2ef",
    "0a1276e": "5b64e1f938c1f5a106a12c7eb30d51e2e1045ead277f5933c0800f761e43c2ae",
}
#: The zero-context hunks of 0.31.0 -> 0.33.0 that are commit 0a1276e (contract, section 3).
HUNKS = ("31905c87d2b0", "2966b59403f6", "b62514e7f14e")
HOST = {
    "kind": "sdist",
    "distribution": "vllm",
    "version": "0.31.0",
    "sha256": "dde46f1efbe846e5bd0c5c4ec6ec71842c42254c7ff3d9bebb2a57028715d380",
}

#: p differing by row, from 0.1 to 0.999.
PS = ["0.1", "0.3", "0.5", "0.7", "0.8", "0.9", "0.95", "0.999"]


def release(version: str) -> dict[str, Any]:
    """Return the source spec of a published kernel file."""
    return {"kind": "release", "distribution": "vllm", "version": version, "member": KERNEL, "sha256": PINS[version]}


def commit() -> dict[str, Any]:
    """Return the source spec of commit 0a1276e, rebuilt from two releases."""
    base, donor = release("0.31.0"), release("0.33.0")
    return {"kind": "pick", "base": base, "donor": donor, "hunks": list(HUNKS), "sha256": PINS["0a1276e"]}


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


def reproduction() -> dict[str, Any]:
    """Return case 11: the stand-in for the retained local case, which was not supplied."""
    return {
        "id": "reproduction",
        "about": "The retained local case: not supplied. Stand-in: the first seed of a declared sequence whose stock "
        "and patched masks differ, in 2 slices a row, as a batch of 64 has on 132 SMs.",
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
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in taken:
        groups.setdefault((row["report"], length(row)), []).extend([row] * row["batch"])
    for (report, _), rows in groups.items():
        yield launch(report, rows)


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


# ------------------------------------------------------------------------------------------- the files


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
        "cases": [*forced_and_controls(), *real_logits(), reproduction(), *reported(4096)],
    }


DRAFTS = {
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
