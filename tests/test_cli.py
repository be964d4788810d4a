"""A user's mistake at the command line: exit status 2, one line on standard error, nothing on standard output, no run.

What a command says is seen through a process of its own where that is the point, and in this one for the long tables.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from params_data import Edit, case, draft, edited, forced, put

from toppgate import cli, params, plain_yaml

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "params" / "demo.yml"
COMMAND = [sys.executable, "-m", "toppgate"]

Refused = Callable[..., str]


def line_of(status: int, out: str, err: str) -> str:
    """Return the one line of a refusal, once it is seen to be one."""
    assert (status, out) == (2, ""), err
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert err.startswith("toppgate: ")
    assert err[:-1].isprintable()
    return err[len("toppgate: ") : -1]


def spawned(*arguments: str | Path, cwd: Path, before: tuple[str, ...] = (), **more: str) -> str:
    """Return the line with which a command in a process of its own refuses its work; ``before`` runs the process."""
    done = process([*before, *COMMAND, *map(str, arguments)], cwd, **more)
    return line_of(done.returncode, done.stdout, done.stderr)


def process(command: list[str], cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a directory."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Refused]:
    """Give a function that runs a command here, in an empty directory, and returns the line of its refusal.

    It also sees that the command left everything as it was, and does the same with ``--json``.
    """
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)

    def once(*arguments: str) -> str:
        here = contents(tmp_path)
        monkeypatch.setattr(sys, "argv", ["toppgate", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert contents(tmp_path) == here
        return line_of(caught.value.code, *capsys.readouterr())  # type: ignore[arg-type]

    def function(command: str, *arguments: str) -> str:
        line = once(command, *arguments)
        assert once(command, "--json", *arguments) == line
        return line

    yield function
    signal.signal(signal.SIGTERM, before)


def contents(directory: Path) -> dict[str, bytes | None]:
    """Return what a directory holds: no run, whole or partial, escapes this."""
    return {str(p.relative_to(directory)): p.read_bytes() if p.is_file() else None for p in directory.rglob("*")}


def demo(edit: Edit | None = None, *, refreeze: bool = False) -> bytes:
    """Return the demonstration's file after an edit, and with its digests computed anew if asked."""
    if edit is None:
        return DEMO.read_bytes()
    values = edited(edit, params.read(DEMO).values())
    if refreeze:
        values["frozen"] = params.freeze_digest(values)
    return params.HEADER + plain_yaml.dump(values)


# ---------------------------------------------------------------------------------------------- params files


def test_the_file_that_is_edited_below_is_accepted(tmp_path: Path) -> None:
    """Unedited it gets as far as its sources, all of which are read."""
    from toppgate import run

    (tmp_path / "x.yml").write_bytes(demo())
    assert run.prepare(tmp_path / "x.yml", tmp_path / "out").title.startswith("demonstration")


QUOTES = "write it in quotes, since YAML 1.1 and 1.2 read bare values differently"
TAGS = "anchors, aliases and tags are not allowed"
DOMAIN = "expected 0 < p < 1 there (invalid_p) on a row that is not a probe"
SEED = "expected a whole number of at most 128 bits, as a string of digits"
NAME = "expected at most 80 letters, digits, dots, underscores and hyphens, of which the first is a letter or digit"
CODES = "pass, nonfinite_logits, invalid_p, path_mismatch, limit_exceeded, stock_under_keep"
AGAIN = "differs from what was frozen; freeze again, as a new file"
NOT_ITS_FORM = "x.yml: not in freeze's own form, so it was edited; freeze it again, as a new file"

TEXTS: dict[str, tuple[bytes, str]] = {
    "unknown key": (
        demo(put("cases", 0, "rows", "base", "sead", "1")),
        "x.yml: cases[forced].rows.base.sead: unknown key; did you mean 'seed'?",
    ),
    "wrong type": (demo(put("repeat", "2")), "x.yml: repeat: got str '2', expected a whole number"),
    "bare decimal": (
        demo().replace(b'p: "0.95"', b"p: 0.95"),
        f"x.yml: cases[forced].p: got float 0.95, expected a string; {QUOTES}",
    ),
    "duplicate key": (
        demo() + b"repeat: 3\n",
        'x.yml: line 114: not plain YAML 1.2: found duplicate key "repeat" with value "3" (original value: "2")',
    ),
    "anchor": (
        demo().replace(b"repeat: 2", b"repeat: &two 2"),
        f"x.yml: line 7: not plain YAML 1.2: {TAGS}",
    ),
    "tag": (
        demo().replace(b"repeat: 2", b"repeat: !!int 2"),
        f"x.yml: line 7: not plain YAML 1.2: {TAGS}",
    ),
    "no YAML": (b"\x00\x01", "x.yml: not plain YAML 1.2: special characters are not allowed"),
    "no text": (b"\xff\xfe", "x.yml: byte 0: expected UTF-8"),
    "empty": (b"", "x.yml: the file: got nothing, expected a mapping of keys"),
    "large": (b"#" * 5 * 2**20, "x.yml: more than 4194304 bytes, expected at most as many"),
    "p that rounds to 1": (
        demo(put("cases", 1, "p", ["0.99999999"] * 8)),
        f"x.yml: cases[control].p, row 0: got 0.99999999, which is 1.0 in fp32, {DOMAIN}",
    ),
    "p that rounds to 0": (
        demo(put("cases", 0, "p", "1e-46")),
        f"x.yml: cases[forced].p, row 0: got 1e-46, which is 0.0 in fp32, {DOMAIN}",
    ),
    "p that is NaN": (
        demo(put("cases", 0, "p", "nan")),
        f"x.yml: cases[forced].p, row 0: got nan, which is nan in fp32, {DOMAIN}",
    ),
    "vocabulary over the limit": (
        demo(put("limits", "vocabulary", 4095), refreeze=True),
        "x.yml: cases[forced].rows: vocabulary 4096, expected at most limits.vocabulary 4095",
    ),
    "batch over the limit": (
        demo(put("limits", "batch", 7), refreeze=True),
        "x.yml: cases[control].rows: batch 8, expected at most limits.batch 7",
    ),
    "rows over the limit": (
        demo(put("limits", "rows", 11), refreeze=True),
        "x.yml: limits.rows: got 12 rows in all cases, expected at most 11",
    ),
    "seed over 128 bits": (
        demo(put("cases", 1, "rows", "seed", str(2**128))),
        f"x.yml: cases[control].rows.seed: got str '{2**128}', {SEED}",
    ),
    "scale of 17 bits": (
        demo(put("cases", 1, "rows", "scale", "1.00001")),
        "x.yml: cases[control].rows.scale: got 1.00001, expected a number of at most 16 significant bits",
    ),
    "id twice": (
        demo(put("cases", 1, "id", "forced")),
        "x.yml: cases[forced].id: stands twice, as forced before; expected ids that differ in letters",
    ),
    "id that climbs": (
        demo(put("cases", 1, "id", "../x")),
        f"x.yml: cases[1].id: got str '../x', {NAME}",
    ),
    "id of two lines": (
        demo(put("cases", 1, "id", "x\ny")),
        f"x.yml: cases[1].id: got str 'x\\ny', {NAME}",
    ),
    "id of HTML": (
        demo(put("cases", 1, "id", "<script>alert(1)</script>")),
        f"x.yml: cases[1].id: got str '<script>alert(1)</script>', {NAME}",
    ),
    "probe for a code that it may not name": (
        demo(lambda values: values["cases"][1].update(role="probe", expect="patch_hole")),
        f"x.yml: cases[control].expect, row 0: got patch_hole, expected one of {CODES} on a probe",
    ),
    "forced without a token": (
        demo(put("cases", 1, "role", "forced")),
        "x.yml: cases[control].token, row 0: got nothing, expected a token below 4096 on a forced row",
    ),
    "token beyond the vocabulary": (
        demo(put("cases", 0, "rows", "token", 4096)),
        "x.yml: cases[forced].rows.token: got 4096, expected a token below 4096",
    ),
    "a list of the wrong length": (
        demo(put("cases", 1, "p", ["0.5"] * 7)),
        "x.yml: cases[control].p: got 7 values, expected one, or one for each of 8 rows",
    ),
    "k on a control": (
        demo(put("cases", 1, "k", 50)),
        "x.yml: cases[control].k: got 50, expected none: a call with k is allowed on probes only",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_run_refuses_a_params_file_before_anything_starts(refused: Refused, tmp_path: Path, name: str) -> None:
    """Each with the file, the key and the case in one line; no directory is made."""
    text, expected = TEXTS[name]
    (tmp_path / "x.yml").write_bytes(text)
    assert refused("run", "x.yml", "--out", "out") == expected


@pytest.mark.parametrize("name", TEXTS)
def test_freeze_refuses_it_in_the_same_words(refused: Refused, tmp_path: Path, name: str) -> None:
    """Before any source is looked for, and the file is left as it was."""
    text, expected = TEXTS[name]
    (tmp_path / "x.yml").write_bytes(text)
    assert refused("freeze", "x.yml") == expected


UNFROZEN: dict[str, tuple[bytes, str]] = {
    "a draft": (
        plain_yaml.dump(draft(forced(), case())),
        "x.yml: frozen: got nothing, expected the digests that toppgate freeze writes",
    ),
    "an edited case": (
        demo(put("cases", 0, "about", "edited")),
        f"x.yml: params_drift: cases[forced] {AGAIN}",
    ),
    "an edited limit": (
        demo(put("limits", "launch_seconds", 61)),
        f"x.yml: params_drift: limits {AGAIN}",
    ),
    "another title": (
        demo().replace(b"one forced case", b"ONE forced case"),
        f"x.yml: params_drift: title {AGAIN}",
    ),
    "cases in another order": (
        demo(lambda values: values["cases"].reverse()),
        f"x.yml: params_drift: the order of cases, or frozen.sha256 itself, {AGAIN}",
    ),
    "a case taken out": (
        demo(lambda values: values["cases"].pop()),
        f"x.yml: params_drift: cases[control] {AGAIN}",
    ),
    "edited bits": (
        demo(put("cases", 0, "p_bits", "3f733334")),
        "x.yml: cases[forced].p_bits, row 0: got 3f733334, expected 3f733333",
    ),
    "a comment added": (
        demo() + b"# a comment\n",
        NOT_ITS_FORM,
    ),
    "keys in another order": (
        params.HEADER + plain_yaml.dump(dict(reversed(params.read(DEMO).values().items()))),
        NOT_ITS_FORM,
    ),
    "other line ends": (
        demo().replace(b"\n", b"\r\n"),
        NOT_ITS_FORM,
    ),
    "pins taken out and digests computed": (
        demo(lambda values: values["stock"].pop("sha256"), refreeze=True),
        "x.yml: stock.sha256: got nothing, expected what toppgate freeze writes",
    ),
}


@pytest.mark.parametrize("name", UNFROZEN)
def test_run_refuses_what_is_not_frozen_and_names_the_first_part_that_differs(
    refused: Refused, tmp_path: Path, name: str
) -> None:
    """A draft, an edit of any part, another order, a comment: nothing but freeze's own bytes is run."""
    text, expected = UNFROZEN[name]
    (tmp_path / "x.yml").write_bytes(text)
    assert refused("run", "x.yml") == expected


@pytest.mark.parametrize("command", ["run", "freeze"])
def test_a_params_file_that_is_none_is_named(refused: Refused, tmp_path: Path, command: str) -> None:
    """Missing, a directory, a name with what a terminal would obey."""
    (tmp_path / "d").mkdir()
    assert refused(command, "none.yml") == "none.yml: cannot be read: No such file or directory"
    assert refused(command, "d") == "d: cannot be read: Is a directory"
    assert refused(command, "a\x1b[2J\nb.yml") == "a\\x1b[2J b.yml: cannot be read: No such file or directory"


# ---------------------------------------------------------------------------------------------- captured files


BAD_INPUTS: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "cannot be read: No such file or directory; a path starts at the working directory"),
    "truncated": (b"\x40" + bytes(9), "not a readable safetensors file: "),
    "no tensors": (b"PK\x03\x04 this is a zip", "not a readable safetensors file: "),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_freeze_names_a_bad_captured_file_and_its_case(refused: Refused, tmp_path: Path, name: str) -> None:
    """The rest of what can be wrong with one is in the tests of inputs and of freezing."""
    data, expected = BAD_INPUTS[name]
    if data is not None:
        (tmp_path / "x.safetensors").write_bytes(data)
    rows = {"kind": "file", "path": "x.safetensors", "tensor": "logits", "rows": [0, 8]}
    (tmp_path / "x.yml").write_bytes(demo(put("cases", 1, "rows", rows)))
    assert refused("freeze", "x.yml").startswith(f"cases[control].rows: x.safetensors: {expected}")


# ---------------------------------------------------------------------------------------------- run: where it goes


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    """Return a copy of the demonstration's file beside which a run may be made."""
    shutil.copyfile(DEMO, tmp_path / "x.yml")
    return tmp_path / "x.yml"


def test_run_never_writes_over_anything(refused: Refused, frozen: Path, tmp_path: Path) -> None:
    """Another run, an empty directory, a file, a link to nowhere: each is left as it is."""
    why = "is there already, and a run is never overwritten; choose another place"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "receipt.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("run", "empty", "file", "link"):
        assert refused("run", frozen.name, "--out", name) == f"{tmp_path / name}: {why}"
    assert (tmp_path / "link").is_symlink()


def test_run_says_where_it_cannot_write(refused: Refused, frozen: Path, tmp_path: Path) -> None:
    """Below a regular file, in a file system that takes no files, and under a name that is too long."""
    (tmp_path / "file").write_text("mine")
    assert (
        refused("run", frozen.name, "--out", "file/run") == f"{tmp_path / 'file'}: cannot be written: Not a directory"
    )
    assert refused("run", frozen.name, "--out", "/proc/run") == "/proc: cannot be written: No such file or directory"
    assert refused("run", frozen.name, "--out", "x" * 300).endswith(": File name too long")


def test_run_without_permission_to_write_says_so(frozen: Path, tmp_path: Path) -> None:
    """Root without the right to pass over permissions is refused like anyone; so the test holds for root as well."""
    before = ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override") if os.geteuid() == 0 else ()
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    line = spawned("run", frozen.name, "--out", "closed/run", cwd=tmp_path, before=before)
    assert line == f"{closed}: cannot be written: Permission denied"
    assert contents(tmp_path).keys() == {"x.yml", "closed"}


def test_run_without_space_says_so_at_once(frozen: Path, tmp_path: Path) -> None:
    """A process that may write no file of a megabyte stands for a full disk; what was begun is gone."""
    line = spawned("run", frozen.name, "--json", cwd=tmp_path, before=("prlimit", f"--fsize={2**19}"))
    assert line == f"{tmp_path / 'reports'}: cannot be written: File too large"
    assert contents(tmp_path).keys() == {"x.yml", "reports"}


def test_run_that_fills_the_disk_on_its_way_leaves_nothing(frozen: Path, tmp_path: Path) -> None:
    """The first stage cannot write its notebook: no half run is kept, and none is judged."""
    unseen = "from toppgate import cli, run; run.ROOM = 0; cli.main()"
    command = ["prlimit", "--fsize=3000", sys.executable, "-c", unseen, "run", frozen.name, "--out", "out"]
    done = process(command, tmp_path)
    assert line_of(done.returncode, done.stdout, done.stderr).endswith(": File too large")
    assert contents(tmp_path).keys() == {"x.yml"}


# ---------------------------------------------------------------------------------------------- run: what it needs


def test_run_without_network_names_the_source_that_is_not_cached(frozen: Path, tmp_path: Path) -> None:
    """An empty cache and an index that refuses connections: the spec and the reason."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: nobody else takes the port, and it refuses
        index = f"http://127.0.0.1:{closed.getsockname()[1]}/simple/"
        cache = tmp_path / "cache"
        cache.mkdir()
        line = spawned("run", frozen.name, cwd=tmp_path, PIP_INDEX_URL=index, TOPPGATE_CACHE=str(cache))
    assert line.startswith("vllm/v1/sample/ops/topk_topp_triton.py of released vllm 0.31.0: not in the cache, and ")
    assert "Connection refused" in line
    assert contents(tmp_path).keys() == {"x.yml", "cache"}


def test_run_for_a_gpu_on_a_machine_without_one_says_so(frozen: Path, tmp_path: Path) -> None:
    """Before anything is fetched; a search path without the driver's program stands for a machine without it."""
    frozen.write_bytes(demo(put("device", "cuda"), refreeze=True))
    line = spawned("run", frozen.name, cwd=tmp_path, PATH=str(tmp_path))
    assert line == "x.yml: device: got cuda, but this machine has no NVIDIA device"


def test_freeze_without_memory_says_so(tmp_path: Path) -> None:
    """A probe of 2**28 values, which is the most that any limit lets through, in a process that may not have 1 GiB."""
    rows = {"kind": "normal", "seed": "1", "scale": "1", "rows": 2**14, "vocabulary": 2**14}
    probe = {"id": "large", "role": "probe", "rows": rows, "p": "0.5", "expect": "limit_exceeded"}

    def edit(values: dict[str, Any]) -> None:
        values["limits"]["rows"] = 2**15
        values["cases"] = [probe]

    text = demo(edit)
    (tmp_path / "x.yml").write_bytes(text)
    limited = ("prlimit", f"--as={2**30}")
    line = spawned("freeze", "x.yml", cwd=tmp_path, before=limited, OPENBLAS_NUM_THREADS="1")
    assert line.startswith("not enough memory: Unable to allocate 1.00 GiB")
    assert contents(tmp_path) == {"x.yml": text}


# ---------------------------------------------------------------------------------------------- other commands


def test_commands_over_a_directory_refuse_what_is_no_run(refused: Refused, tmp_path: Path) -> None:
    """Not there, a file, empty: one line each."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    for command in ("seal", "verify", "show"):
        assert refused(command, "none") == "none: not a directory"
        assert refused(command, "file") == "file: not a directory"
    assert refused("seal", "empty") == "empty: holds no params.yml, so stage 1 did not run; nothing to judge"
    assert refused("verify", "empty") == "empty: unsealed: holds no receipt.json, so it is not a run"
    assert refused("show", "empty") == "empty: holds no verdict.json"
    assert refused("show", "empty", "--row", "1") == "--row needs --case"
    assert refused("show", "empty", "--case", "x").startswith("empty: rows.jsonl cannot be read: ")


MISTYPED = {
    ("runn",): "No such command 'runn'. Did you mean 'run'?",
    ("run",): "Missing argument 'PARAMS'.",
    ("run", "x.yml", "--outt", "y"): "No such option '--outt'. Did you mean '--out'?",
    ("run", "x.yml", "more"): "Got unexpected extra argument (more)",
    ("show", "x", "--row", "one"): "Invalid value for '--row': 'one' is not a valid integer.",
}


@pytest.mark.parametrize("arguments", MISTYPED)
def test_a_mistyped_command_is_one_line(refused: Refused, arguments: tuple[str, ...]) -> None:
    """Also what the command-line library finds: no usage text."""
    assert refused(*arguments) == MISTYPED[arguments]


def test_no_command_at_all_is_one_line(tmp_path: Path) -> None:
    """And not the whole help folded into one."""
    assert spawned(cwd=tmp_path) == "Missing command."


def test_a_refusal_in_a_process_of_its_own_has_no_traceback_and_no_output(tmp_path: Path) -> None:
    """The same file through the real command, with --json and without, for run and for freeze."""
    text, expected = TEXTS["unknown key"]
    (tmp_path / "x.yml").write_bytes(text)
    for arguments in (("run", "x.yml"), ("run", "x.yml", "--json"), ("freeze", "x.yml", "--json")):
        assert spawned(*arguments, cwd=tmp_path) == expected
    assert contents(tmp_path) == {"x.yml": text}


def test_freeze_with_json_prints_one_object_and_nothing_else(tmp_path: Path) -> None:
    """What a program reads: the file and its digest."""
    shutil.copyfile(DEMO, tmp_path / "x.yml")
    done = process([*COMMAND, "freeze", "x.yml", "--json"], tmp_path)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found == {"params": "x.yml", "sha256": params.read(DEMO).values()["frozen"]["sha256"]}
    assert done.stderr == ""
