"""YAML that two readers could read differently is refused, and freeze's own form is read alike."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from params_data import yaml_1_2
from refusals import bounded, refusal

from toppgate import plain_yaml

NOT_PLAIN = {
    "title: a\nnotes: b\ntitle: c": 'line 3: not plain YAML 1.2: found duplicate key "title"',
    "a: {b: 1, b: 2}": "line 1: not plain YAML 1.2: found duplicate key",
    "a: &x 1\nb: 2": "line 1: not plain YAML 1.2: anchors, aliases and tags",
    "a: 1\nb: *x": "line 2: not plain YAML 1.2: anchors, aliases and tags",
    "&x a: 1": "line 1: not plain YAML 1.2: anchors, aliases and tags",
    "a: !!str 1": "line 1: not plain YAML 1.2: anchors, aliases and tags",
    "a: !!python/object/apply:os.system [x]": "line 1: not plain YAML 1.2: anchors, aliases and tags",
    "a: ! 1": "line 1: not plain YAML 1.2: anchors, aliases and tags",
    "%YAML 1.1\n---\na: no": "line 2: not plain YAML 1.2: directives",
    "%TAG ! tag:x,2000:\n---\na: 1": "line 2: not plain YAML 1.2: directives",
    "<<: {a: 1}\nb: 2": "line 1: not plain YAML 1.2: merge keys",
    "a: 1\n---\nb: 2": "line 2: not plain YAML 1.2: but found another document",
    "a: 1\n\tb: 2": "line 2: not plain YAML 1.2:",
    "a: [1, 2": "line 1: not plain YAML 1.2:",
    'a: "open': "line 1: not plain YAML 1.2:",
    "a: \x00": "not plain YAML 1.2: special characters",
    "a: " + "9" * 5000: "not plain YAML 1.2: Exceeds the limit",
}


@pytest.mark.parametrize("text", NOT_PLAIN)
def test_yaml_that_two_readers_could_read_differently_is_refused(text: str) -> None:
    """Duplicate keys, anchors, aliases, tags, merge keys, directives and second documents are named with their line."""
    assert refusal(lambda: plain_yaml.parse(text, "x.yml")).startswith(f"x.yml: {NOT_PLAIN[text]}")


@pytest.mark.parametrize("nested", ["[" * 2**22, "- " * 1000 + "a", "{a: " * 1000, "? " * 1000])
def test_deep_nesting_is_refused_where_it_gets_deep(nested: str) -> None:
    """No stack overflows and no long text is read to its end, though ruamel looks 1,024 characters ahead."""
    with bounded(calls=4_000_000):
        message = refusal(lambda: plain_yaml.parse(nested, "x.yml"))
    assert message == "x.yml: line 1: not plain YAML 1.2: nested deeper than 32 levels"


def test_a_bomb_of_aliases_is_refused_at_its_first_anchor() -> None:
    """A text that would expand to ten thousand million values costs a few calls."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with bounded(calls=10_000):
        message = refusal(lambda: plain_yaml.parse("\n".join(lines), "x.yml"))
    assert message.startswith("x.yml: line 1: ")


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=30), min_size=1))
def test_any_text_is_written_so_that_both_readers_read_it(values: dict[str, str]) -> None:
    """Also keys and values that no schema would let through: control characters, words like ``no``, astral planes."""
    data = plain_yaml.dump({"values": {f"key {key}": value for key, value in values.items()}})
    expected = {"values": {f"key {key}": value for key, value in values.items()}}
    assert yaml.safe_load(data) == expected
    assert yaml_1_2(data) == expected
