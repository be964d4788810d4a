"""What the schema finds in a params file, in one line: where, the value got, the value expected."""

from typing import Any

import pytest
from params_data import Edit, draft, edited, literal, put
from refusals import refusal

from toppgate import params


def test_the_values_that_the_other_tests_edit_are_accepted() -> None:
    """What is refused below is refused for the edit, since without it nothing is."""
    params.check(draft(), "x.yml")


HINT = "write it in quotes, since YAML 1.1 and 1.2 read bare values differently"
NAMES = "at most 80 letters, digits, dots, underscores and hyphens, of which the first is a letter or digit"
SEED = "a whole number of at most 128 bits, as a string of digits"
ONE_PART = "exactly one of numbers, value with repeat, linspace, affine"
ONE_LINE = "one line without control or format characters"

FAULTS: dict[str, tuple[Edit, str]] = {
    "unknown key": (put("devise", "cuda"), "devise: unknown key; did you mean 'device'?"),
    "unknown and nothing near": (put("zzz", 1), "zzz: unknown key"),
    "unknown in a case": (put("cases", 1, "roel", 1), "cases[control].roel: unknown key; did you mean 'role'?"),
    "unknown in rows": (
        put("cases", 1, "rows", "sead", "1"),
        "cases[control].rows.sead: unknown key; did you mean 'seed'?",
    ),
    "unknown in a base": (
        put("cases", 0, "rows", "base", "roud", "none"),
        "cases[forced].rows.base.roud: unknown key; did you mean 'round'?",
    ),
    "unknown in a part": (
        put("cases", 1, "rows", literal([{"value": "1", "repeat": 8, "repeet": 8}])),
        "cases[control].rows.rows[0][0].repeet: unknown key; did you mean 'repeat'?",
    ),
    "unknown in affine": (
        put("cases", 1, "rows", literal([{"affine": {"start": "0", "step": "1", "count": 8, "stop": "1"}}])),
        "cases[control].rows.rows[0][0].affine.stop: unknown key; did you mean 'step'?",
    ),
    "unknown in limits": (put("limits", "vocabulry", 1), "limits.vocabulry: unknown key; did you mean 'vocabulary'?"),
    "unknown in a source": (put("patch", "membre", 1), "patch.membre: unknown key; did you mean 'member'?"),
    "unknown in a pick's donor": (
        put(
            "patch",
            {
                "kind": "pick",
                "base": draft()["stock"],
                "donor": {**draft()["stock"], "sha526": ""},
                "hunks": ["0" * 12],
            },
        ),
        "patch.donor.sha526: unknown key; did you mean 'sha256'?",
    ),
    "known elsewhere only": (put("cases", 1, "rows", "tokn", 1), "cases[control].rows.tokn: unknown key"),
    "a key that is no string": (put("cases", 1, 3, 1), "cases[control].3: unknown key"),
    "a key with an escape": (put("\x1b[2J", 1), "\\x1b[2J: unknown key"),
    "missing": (lambda values: values.pop("limits"), "limits: got nothing, expected this key"),
    "missing in a case": (lambda values: values["cases"][0].pop("id"), "cases[0].id: got nothing, expected this key"),
    "kind unknown": (
        put("cases", 1, "rows", "kind", "norml"),
        "cases[control].rows.kind: got str 'norml', expected one of 'normal', 'file', 'literal', 'forced'",
    ),
    "kind missing": (lambda values: values["stock"].pop("kind"), "stock.kind: got nothing, expected this key"),
    "bare decimal": (put("cases", 1, "p", 0.9), f"cases[control].p: got float 0.9, expected a string; {HINT}"),
    "bare decimal of a row": (
        put("cases", 1, "p", ["0.9", 0.5]),
        f"cases[control].p[1]: got float 0.5, expected a string; {HINT}",
    ),
    "bare scale": (
        put("cases", 1, "rows", "scale", 3),
        f"cases[control].rows.scale: got int 3, expected a string; {HINT}",
    ),
    "bare seed": (
        put("cases", 1, "rows", "seed", 42),
        f"cases[control].rows.seed: got int 42, expected a string; {HINT}",
    ),
    "bare word": (put("title", True), f"title: got bool True, expected a string; {HINT}"),
    "no decimal": (
        put("cases", 1, "p", "0,9"),
        "cases[control].p: got str '0,9', expected a decimal number such as '0.95' or '1e9'",
    ),
    "digits with underscores": (
        put("cases", 1, "rows", "scale", "1_0"),
        "cases[control].rows.scale: got str '1_0', expected a decimal number such as '0.95' or '1e9'",
    ),
    "a mapping for p": (put("cases", 1, "p", {"a": 1}), "cases[control].p: got dict {'a': 1}, expected a string"),
    "no p at all": (put("cases", 1, "p", []), "cases[control].p: got list [], expected a list of at least 1"),
    "a string for a number": (put("repeat", "2"), "repeat: got str '2', expected a whole number"),
    "true for a number": (put("repeat", True), "repeat: got bool True, expected a whole number"),
    "one repeat": (put("repeat", 1), "repeat: got int 1, expected at least 2"),
    "a huge number": (put("repeat", 1 << 20000), "repeat: got int a huge number, expected at most 100"),
    "true for a version": (put("schema_version", True), "schema_version: got bool True, expected a whole number"),
    "a decimal version": (put("schema_version", 1.0), "schema_version: got float 1.0, expected a whole number"),
    "a later version": (
        put("schema_version", 2),
        "schema_version: got int 2, expected 1, the version that this toppgate reads",
    ),
    "unknown role": (
        put("cases", 1, "role", ["control", "contrl"]),
        "cases[control].role[1]: got str 'contrl', expected 'forced', 'control', 'reproduction', 'ordinary' or 'probe'",
    ),
    "unknown device": (put("device", "gpu"), "device: got str 'gpu', expected 'interpreter' or 'cuda'"),
    "a list for rows": (put("cases", 1, "rows", [1]), "cases[control].rows: got list [1], expected a mapping of keys"),
    "nothing for rows": (put("cases", 1, "rows", None), "cases[control].rows: got nothing, expected a mapping of keys"),
    "no cases": (put("cases", []), "cases: got list [], expected a list of at least 1"),
    "cases by name": (put("cases", {}), "cases: got dict {}, expected a list"),
    "a part of two kinds": (
        put("cases", 1, "rows", literal([{"value": "1", "numbers": ["1"]}])),
        f"cases[control].rows.rows[0][0]: got dict {{'value': '1', 'numbers': ['1']}}, expected {ONE_PART}",
    ),
    "a value without repeat": (
        put("cases", 1, "rows", literal([{"value": "1"}])),
        f"cases[control].rows.rows[0][0]: got dict {{'value': '1'}}, expected {ONE_PART}",
    ),
    "a seed over 128 bits": (
        put("cases", 1, "rows", "seed", str(2**128)),
        f"cases[control].rows.seed: got str '{2**128}', expected {SEED}",
    ),
    "a negative seed": (
        put("cases", 1, "rows", "seed", "-1"),
        f"cases[control].rows.seed: got str '-1', expected {SEED}",
    ),
    "an id that climbs": (put("cases", 0, "id", "../x"), f"cases[0].id: got str '../x', expected {NAMES}"),
    "an id of two lines": (put("cases", 0, "id", "x\n"), f"cases[0].id: got str 'x\\n', expected {NAMES}"),
    "an id of HTML": (put("cases", 0, "id", "<b>x</b>"), f"cases[0].id: got str '<b>x</b>', expected {NAMES}"),
    "an id that hides": (put("cases", 0, "id", ".x"), f"cases[0].id: got str '.x', expected {NAMES}"),
    "an id with an escape": (put("cases", 0, "id", "\x1b[2J"), f"cases[0].id: got str '\\x1b[2J', expected {NAMES}"),
    "an empty id": (put("cases", 0, "id", ""), f"cases[0].id: got str '', expected {NAMES}"),
    "a title of two lines": (put("title", "a\nb"), f"title: got str 'a\\nb', expected {ONE_LINE}"),
    "a title that turns round": (put("title", "a\u202eb"), f"title: got str 'a\\u202eb', expected {ONE_LINE}"),
    "an empty title": (put("title", ""), "title: got str '', expected a string that is not empty"),
    "half a character": (put("title", "\ud83d"), "title: got str '\\ud83d', expected a string of Unicode characters"),
    "a version that is a path": (
        put("stock", "version", "../0.31.0"),
        "stock.version: got str '../0.31.0', expected a version, such as 0.31.0 or 2.13.0+cu130",
    ),
    "a digest in capitals": (
        put("stock", "sha256", "A" * 64),
        f"stock.sha256: got str '{'A' * 56}..., expected 64 lower-case hex digits",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_key_case_value_got_and_value_expected(name: str) -> None:
    """One line says where and what; an unknown key comes with the nearest one that is known at that very place."""
    edit, expected = FAULTS[name]
    assert refusal(lambda: params.check(edited(edit), "x.yml")) == f"x.yml: {expected}"


def test_a_local_version_is_a_version() -> None:
    """As PyTorch's and vLLM's own builds for one CUDA release have it."""
    params.check(edited(put("host", "version", "0.31.0+cu130")), "x.yml")


@pytest.mark.parametrize("values", [None, [], "a", 3, True])
def test_a_file_that_is_no_mapping_is_refused(values: Any) -> None:
    """An empty file and a list are no params."""
    assert refusal(lambda: params.check(values, "x.yml")).startswith("x.yml: the file: got ")


def test_an_unknown_key_is_named_before_the_key_that_it_was_meant_for() -> None:
    """A mistyped required key gives two faults: the mistyping is named, and that there are more."""
    values = draft()
    values["devise"] = values.pop("device")
    assert refusal(lambda: params.check(values, "x.yml")) == (
        "x.yml: devise: unknown key; did you mean 'device'? (and 1 more)"
    )
