"""Hostile and merely odd input, drawn or written down: one line for the user, never a traceback, never an agreement.

Drawn from real files with something replaced, so that most of what is tried gets past the first check.
"""

import contextlib
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pipeline
import pytest
import rfc8785
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from refusals import bounded, refusal
from test_verify import refused, reseal

from toppgate import cli, inputs, notebooks, outputs, params, plain_yaml, stage
from toppgate.errors import InputError, ParamsError, RunError, ToppgateError
from toppgate.verify import verify

Run = tuple[Path, subprocess.CompletedProcess[str]]
Place = tuple[str | int, ...]

#: Text with what a terminal, a shell, a path or a page would obey.
odd = st.text(max_size=12) | st.sampled_from(
    ["../../x", "/etc/passwd", "<b>", "\n", "\x1b[2J", "a\x00", "\ud800", "1e9"]
)
numbers = st.integers() | st.sampled_from([2**31, 2**53, 2**63, 2**64, -1]) | st.floats()
JSON = st.recursive(
    st.none() | st.booleans() | numbers | odd,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd, inner, max_size=3),
    max_leaves=5,
)

few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
many = settings(max_examples=100, deadline=None)


def places(value: Any, above: Place = ()) -> Iterator[Place]:
    """Yield the way to every value inside a JSON-like value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*above, key)
        yield from places(item, (*above, key))


@st.composite
def replaced(draw: st.DrawFn, value: Any) -> tuple[Place, Any]:
    """Return a place, and a copy of the value that has something else there, or one key more beside it."""
    copy = json.loads(json.dumps(value))
    place = draw(st.sampled_from(list(places(copy))))
    here = copy
    for key in place[:-1]:
        here = here[key]
    other = draw(JSON)
    assume(not alike(other, here[place[-1]]))
    if isinstance(here, dict) and draw(st.booleans()):
        here["one key more"] = other
        return (*place[:-1], "one key more"), copy
    here[place[-1]] = other
    return place, copy


def alike(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON; True is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@st.composite
def spliced(draw: st.DrawFn, data: bytes) -> bytes:
    """Return bytes of which a short piece is gone, and another put in its place."""
    start = draw(st.integers(0, len(data)))
    made = data[:start] + draw(st.binary(max_size=8) | odd.map(encoded)) + data[start + draw(st.integers(0, 40)) :]
    assume(made != data)
    return made


def encoded(text: str) -> bytes:
    """Return UTF-8, a lone surrogate as three bytes."""
    return text.encode("utf-8", "surrogatepass")


# ---------------------------------------------------------------------------------------------- receipts


@pytest.fixture(scope="module")
def sealed(run_by_command: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of a sealed run, whose receipt each example writes anew."""
    return Path(shutil.copytree(run_by_command[0], tmp_path_factory.mktemp("sealed") / "run"))


#: What nothing else in a run tells of, so that an unsigned receipt can say anything there.
FREE = {"sealed", "toppgate", "mathematics", "rendering"}


@few
@given(data=st.data())
def test_a_receipt_with_something_replaced(sealed: Path, run_by_command: Run, data: st.DataObject) -> None:
    """Refused, also where its digest over itself was computed again, but for what says how it was sealed."""
    place, receipt = data.draw(replaced(json.loads((run_by_command[0] / "receipt.json").read_bytes())))
    try:
        receipt["predicate"].pop("sha256", None)
        receipt["predicate"]["sha256"] = sha256(rfc8785.dumps(receipt))
        text = rfc8785.dumps(receipt) + b"\n"
    except (ValueError, KeyError, TypeError, AttributeError):  # what has no canonical form is written all the same
        text = encoded(json.dumps(receipt))
    assume(text != (run_by_command[0] / "receipt.json").read_bytes())  # 2.0 is written as 2
    (sealed / "receipt.json").write_bytes(text)
    if place[:1] == ("predicate",) and FREE & {str(key) for key in place[1:2]}:
        verify(sealed)
    elif place != ("predicate", "sha256"):  # which was computed again
        assert refused(sealed).isprintable()


@few
@given(data=st.data())
def test_a_receipt_of_other_bytes(sealed: Path, run_by_command: Run, data: st.DataObject) -> None:
    """Refused, whatever they are."""
    whole = (run_by_command[0] / "receipt.json").read_bytes()
    (sealed / "receipt.json").write_bytes(data.draw(st.binary(max_size=60) | spliced(whole)))
    assert refused(sealed).isprintable()


#: What a judgement gives again, and what stages 1 and 2 measured, of which some is told nowhere else.
DERIVED, MEASURED = ("verdict.json", "rows.jsonl"), ("1_capture.json", "2_execute.json")


@few
@given(data=st.data(), name=st.sampled_from(DERIVED + MEASURED))
def test_a_result_with_something_replaced(run_by_command: Run, tmp_path_factory: Any, data: Any, name: str) -> None:
    """Hashed again, what is derived is refused where it says something else, and the rest never ends in a traceback."""
    run = Path(shutil.copytree(run_by_command[0], tmp_path_factory.mktemp("result") / "run"))
    lines = [json.loads(line) for line in (run / name).read_bytes().splitlines()]
    place, changed = data.draw(replaced(lines))
    try:
        (run / name).write_bytes(b"".join(rfc8785.dumps(line) + b"\n" for line in changed))
    except ValueError:
        (run / name).write_bytes(b"".join(encoded(json.dumps(line)) + b"\n" for line in changed))
    assume((run / name).read_bytes() != (run_by_command[0] / name).read_bytes())  # 2.0 is written as 2
    try:
        reseal(run)
    except (KeyError, TypeError, ValueError, AttributeError):
        return  # the attacker's own tool gave up: nothing is sealed
    if name in DERIVED and place[1:] != ("wall_seconds",):
        assert refused(run).isprintable()
    else:
        with contextlib.suppress(RunError):
            verify(run)
    for arguments in ([], ["--case", "control"], ["--case", "control", "--row", "0"]):
        shown = CliRunner().invoke(cli.cli, ["show", str(run), *arguments])
        assert shown.exception is None or isinstance(shown.exception, ToppgateError)
    shutil.rmtree(run)


def sha256(data: bytes) -> str:
    """Return a digest without asking toppgate."""
    return hashlib.sha256(data).hexdigest()


def dirty_as_a_number(receipt: Any) -> None:
    """Say whether the repository had changes by 0 or 1."""
    receipt["predicate"]["git"]["dirty"] = int(receipt["predicate"]["git"]["dirty"])


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("rows.jsonl", lambda row: row.update(equal_patch=int(row["equal_patch"])), "rows.jsonl: case forced row 0: "),
        ("verdict.json", lambda verdict: verdict["envelope"]["control"].update(within=1), "verdict.json: envelope: "),
        ("receipt.json", dirty_as_a_number, "receipt.json: git: says "),
    ],
)
def test_true_is_not_one(run_by_command: Run, tmp_path: Path, name: str, change: Any, said: str) -> None:
    """What Python takes for the same is another JSON value."""
    run = Path(shutil.copytree(run_by_command[0], tmp_path / "run"))
    lines = [json.loads(line) for line in (run / name).read_bytes().splitlines()]
    change(lines[0])
    (run / name).write_bytes(b"".join(rfc8785.dumps(line) + b"\n" for line in lines))
    reseal(run)
    assert refused(run).startswith(said)


# ---------------------------------------------------------------------------------------------- tensors

TYPES = ("F32", "I32", "U32", "F64", "BF16", "BOOL", "F8_E4M3", "F4", "C64", "f32", "")
lengths = st.integers(0, 9) | st.sampled_from([2**31, 2**63, 2**64 - 1, 2**64, -1])
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(TYPES),
        "shape": st.lists(lengths, max_size=3),
        "data_offsets": st.lists(lengths, min_size=2, max_size=2),
    }
)
names = st.sampled_from(["logits", "p", "length", "differ", "exceptions", "__metadata__"]) | odd
headers = st.dictionaries(names, entries | JSON, max_size=4).map(lambda header: encoded(json.dumps(header)))


@st.composite
def tensors(draw: st.DrawFn) -> bytes:
    """Return a safetensors file, as far as one can be drawn: its header need not be JSON, nor as long as it says."""
    header = draw(headers | st.binary(max_size=20))
    size = draw(st.just(len(header)) | st.sampled_from([0, 2**32, 2**63, 2**64 - 1]))
    return size.to_bytes(8, "little") + header + draw(st.binary(max_size=40))


ORDERS = np.array([[1, 0, 2]], dtype=np.int32)
SOUND = inputs.Inputs(np.zeros((1, 3), np.float32), np.full(1, 0.5, np.float32))
MASKS = outputs.to_bytes(outputs.compare(SOUND.logits, SOUND.logits), ORDERS, {"run": "x"})


@many
@given(tensors() | spliced(MASKS))
def test_tensors_of_any_bytes(data: bytes) -> None:
    """Inputs, masks and what they belong to are read, or refused in one line."""
    for read in (
        lambda: inputs.from_bytes(data, "x"),
        lambda: outputs.from_bytes(data, ORDERS, "x"),
        lambda: outputs.binding_of(data, "x"),
        lambda: {key: inputs.matrix(found, "x") for key, found in inputs.load(data, "x").items()},
    ):
        with contextlib.suppress(InputError):
            read()


# ---------------------------------------------------------------------------------------------- notebooks


@many
@given(data=st.data())
def test_injected_parameters_with_something_replaced(tiny: Path, data: st.DataObject) -> None:
    """A stage is not entered, or entered with a stop: never as if they were the frozen values."""
    values = params.read(tiny).values()
    _, changed = data.draw(replaced(values))
    with contextlib.suppress(ToppgateError):
        entered = stage.enter({**changed, "run_dir": str(tiny.parent / "none")})
        assert entered.stop is not None
        assert entered.stop.code == "params_drift"


targets = st.sampled_from(["repeat", "run_dir", "a.b", "x[0]", "(a, b)"])
HARD = ("x = {[]: 1}", "x = {[1]}", "x = " + "(" * 3000, "x = " + "-" * 3000 + "1", "x = 9" + "9" * 5000)
lines_of_code = st.lists(odd | st.builds("{} = {}".format, targets, JSON.map(repr)) | st.sampled_from(HARD))


@many
@given(lines_of_code)
def test_an_injected_cell_of_any_code(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """It is evaluated as literals, or it is not read at all."""
    path = tmp_path_factory.mktemp("cell") / "x.ipynb"
    notebook = nbformat.v4.new_notebook()
    cell = nbformat.v4.new_code_cell("\n".join(lines), metadata={"tags": ["injected-parameters"]})
    notebook.cells.append(cell)
    path.write_bytes(encoded(nbformat.writes(notebook)))
    found = notebooks.injected(path)
    assert found is None or isinstance(found, dict)


@few
@given(data=st.data())
def test_a_notebook_with_something_replaced(run_by_command: Run, tmp_path_factory: Any, data: st.DataObject) -> None:
    """Whether it counts as done is said, whatever it holds."""
    directory = tmp_path_factory.mktemp("notebook")
    _, changed = data.draw(replaced(json.loads((run_by_command[0] / "1_capture.ipynb").read_bytes())))
    (directory / "1_capture.ipynb").write_bytes(encoded(json.dumps(changed)))
    found = notebooks.acceptance("1_capture", directory)
    assert found is None or found.code == "worker_crashed"


# ---------------------------------------------------------------------------------------------- params

DEMO = pipeline.ROOT / "params" / "demo.yml"


@settings(max_examples=60, deadline=None)
@given(data=spliced(DEMO.read_bytes()))
def test_a_params_file_of_other_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Refused, or read as what it says, and then it is not the frozen file."""
    path = tmp_path_factory.mktemp("params") / "x.yml"
    path.write_bytes(data)
    with contextlib.suppress(ParamsError):
        checked = params.read(path)
        params.check_frozen(checked, "x.yml")
        assert params.dump(checked) != data


@pytest.mark.parametrize("case", ["1", "{}", "{id: a}"])
def test_a_million_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """A small file may hold a million of something: it is read up to a limit, here a lower one, and refused."""
    assert plain_yaml.MAX_VALUES < 1_000_000
    monkeypatch.setattr(plain_yaml, "MAX_VALUES", 1000)
    path = tmp_path / "x.yml"
    path.write_text(f"cases: [{','.join([case] * 1_000_000)}]\n"[: params.MAX_BYTES - 1])
    with bounded(calls=1_000_000):
        message = refusal(lambda: params.read(path))
    assert message == f"{path}: line 1: not plain YAML 1.2: more than 1000 values"


# ---------------------------------------------------------------------------------------------- written down


def sealed_again(sealed: Path, run_by_command: Run, name: str, digest: str) -> str:
    """Have the receipt name one more file, computed again, and return why it is refused."""
    receipt = json.loads((run_by_command[0] / "receipt.json").read_bytes())
    receipt["subject"].append({"name": name, "digest": {"sha256": digest}})
    receipt["predicate"].pop("sha256")
    receipt["predicate"]["sha256"] = sha256(rfc8785.dumps(receipt))
    (sealed / "receipt.json").write_bytes(rfc8785.dumps(receipt) + b"\n")
    return refused(sealed)


@pytest.mark.parametrize("name", ["../outside", "{absolute}", "inputs/../../outside", "link/outside"])
def test_a_name_that_leaves_the_run(sealed: Path, run_by_command: Run, name: str) -> None:
    """A file outside, named by the receipt with its true digest, is no file of the run."""
    outside = sealed.parent / "outside"
    outside.write_text("outside")
    named = name.format(absolute=outside)
    said = sealed_again(sealed, run_by_command, named, sha256(b"outside"))
    assert said == f"{named}: named by the receipt, but not there"


def test_a_link_that_leaves_the_run(run_by_command: Run, tmp_path: Path) -> None:
    """A file or a directory of the run that is a link to its like outside is refused, though the bytes are the same."""
    for name in ("outputs/control.patch.safetensors", "outputs"):
        run = Path(shutil.copytree(run_by_command[0], tmp_path / name.replace("/", "-") / "run"))
        (run / name).rename(run.parent / "kept")
        (run / name).symlink_to(run.parent / "kept")
        assert refused(run) == f"{name}: neither a file nor a directory"


NAMES = ("a\nverify      every digest agrees", "<img onerror=alert(1)>", "\x1b[2J", "a\rb", "\udcff")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_name_is_shown_and_not_obeyed(run_by_command: Run, tmp_path: Path, name: str) -> None:
    """A difference is one line of what can be printed, in the text and in JSON."""
    run = Path(shutil.copytree(run_by_command[0], tmp_path / "run"))
    (run / name).write_text("")
    done = CliRunner().invoke(cli.cli, ["verify", str(run)])
    assert done.exit_code == 1
    first, second = done.output.splitlines()
    assert first.endswith(": there, but not named by the receipt")
    assert second == "verdict     PASS"
    assert done.output.replace("\n", "").isprintable()
    said = json.loads(CliRunner().invoke(cli.cli, ["verify", str(run), "--json"]).output)
    assert said["difference"] == first.removeprefix("verify      ")


def test_a_header_that_claims_more_than_there_is(run_by_command: Run, tmp_path: Path) -> None:
    """A length of 2**63, or a shape of that many values, is no reason to ask for memory."""
    run = Path(shutil.copytree(run_by_command[0], tmp_path / "run"))
    huge = b'{"logits":{"dtype":"F32","shape":[2,9223372036854775808],"data_offsets":[0,8]}}'
    for size, body in ((2**63, b"{}"), (2**63 - 1, b"{}"), (len(huge), huge + bytes(8))):
        data = size.to_bytes(8, "little") + body
        with pytest.raises(InputError, match="not a readable safetensors file"):
            inputs.from_bytes(data, "x")
        (run / "inputs" / "control.safetensors").write_bytes(data)
        reseal(run)
        assert "control.safetensors: not a readable safetensors file: " in refused(run)
