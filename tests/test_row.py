"""One row of a run taken apart: what the command tells, what it exports, and how small a row gets with its cause."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pipeline
import pytest
import safetensors.numpy
from click.testing import CliRunner

from toppgate import cli, export, host, oracle, params, published, rerun, row, trace
from toppgate.errors import RunError
from toppgate.rerun import Kernel
from toppgate.row import Row
from toppgate.shrink import Bench, Fault, Levels, Shrunk, Stopped, shrink


@pytest.fixture(scope="module")
def real(rows_run: Path) -> Row:
    """Return the row with 3637 + 42 kept."""
    found = row.find(rows_run, "real", 0)
    assert (found.code, found.side) == ("count_bound_exceeded", "patch")
    assert (found.reference.count, found.outputs["patch"].size) == (3637, 3679)
    return found


@pytest.fixture(scope="module")
def shrunk(real: Row) -> Shrunk:
    """Return what the real row shrinks to."""
    with rerun.started(row.texts(real.params), row.provided(real.params)) as kernels:
        return shrink(Bench(Stopped.of(real), kernels), seconds=600)


def test_the_real_row_shrinks_with_its_cause(shrunk: Shrunk) -> None:
    """At most 16 tokens off one background and 4 logits remain, in slices of two blocks; 0.33.0 passes as before."""
    assert shrunk.whole.fault == shrunk.small.fault == Fault("count_bound_exceeded", "counting", 1, None)
    assert "donor" in shrunk.whole.passing & shrunk.small.passing
    assert shrunk.small.explained.cause.main == ("counting", 1)
    size = shrunk.small.size
    assert size["tokens off background"] <= 16
    assert size["distinct logits"] <= 4
    # Four tied tokens are in the second block of a slice, and a slice must reach so far.
    assert size["vocabulary"] == 2 * (8192 + 4 - 1) + 1


def test_a_background_that_stops_a_row_is_cut(real: Row) -> None:
    """One logit and 9,000 equal ones, of which the kernel keeps all: two dozen do, and no token ends elsewhere."""
    logits = np.full(9001, -8, np.float32)
    logits[9] = 0
    flat = Stopped("flat", "count_bound_exceeded", "patch", 1, logits, np.float32("0.9943046"))
    with rerun.started(row.texts(real.params), row.provided(real.params)) as kernels:
        found = shrink(Bench(flat, kernels), seconds=600)
    assert found.small.fault == found.whole.fault
    assert found.small.size == {"vocabulary": 26, "tokens off background": 1, "distinct logits": 2}
    assert (found.small.reference.count, found.small.outputs["patch"].size) == (9, 26)


def test_the_export_shows_the_fault_without_toppgate(real: Row, shrunk: Shrunk, tmp_path: Path) -> None:
    """The script keeps what was observed on the kernel to blame, and what is expected on 0.33.0."""
    target = tmp_path / "issue"
    assert set(export.export(real, shrunk.small, target, shrunk)) == {path.name for path in target.iterdir()}
    held = safetensors.numpy.load_file(target / "row.safetensors")
    reference = oracle.reference(held["logits"][0], held["p"][0])
    assert held["expected"].tolist() == sorted(reference.order[: reference.count].tolist())
    assert held["observed"].size - held["expected"].size == shrunk.small.explained.cause.total
    provided = host.provide(pipeline.HOST, published.cache())
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(provided.path)}
    texts = row.texts(real.params)
    running = {}
    for name in ("patch", "donor"):  # side by side: each takes as long as torch takes to import
        kernel = tmp_path / f"{name}.py"
        kernel.write_bytes(texts[name])
        command = [sys.executable, "-P", str(target / "reproduce.py"), str(kernel)]
        running[name] = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    for name, status, kept in (("patch", 1, held["observed"]), ("donor", 0, held["expected"])):
        said, _ = running[name].communicate(timeout=300)
        assert running[name].returncode == status, said
        assert f"expected {held['expected'].size} tokens, kept {kept.size};" in said
    text = (target / "row.md").read_text(encoding="utf-8")
    assert "Exploratory, not evidence." in text
    assert "kept and not expected" in text
    with pytest.raises(RunError, match="is there already"):
        export.export(real, shrunk.small, target)


def test_the_command_tells_why(rows_run: Path) -> None:
    """Stock's loss of a token is traced on stock, and blamed on its threshold in logits; text and JSON say so."""
    told = CliRunner().invoke(cli.cli, ["row", str(rows_run), "lost", "0", "--json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert (found["side"], found["same_mask"], found["notice"]) == ("stock", True, trace.NOTICE)
    assert found["cause"] == {**dict.fromkeys(trace.PARTS, 0), "threshold": -1}
    assert {rule["threshold"] for rule in found["rules"]} == {"logit"}
    assert [each["oracle"] for each in found["moved"]] == [1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere", "0"], "no row 0 of case nowhere"),
        (["good", "0", "--shrink"], "--shrink needs --export"),
        (["good", "0", "--export", "DIR"], "only an ordinary row that stopped is"),
        (["forced", "0", "--export", "DIR"], "only an ordinary row that stopped is"),
        (["real", "0", "--export", "."], "is there already"),
    ],
)
def test_what_cannot_be_done_is_refused(rows_run: Path, tmp_path: Path, arguments: list[str], line: str) -> None:
    """A row that is not there, did not stop, or has nowhere to go is refused before a kernel starts."""
    arguments = [str(tmp_path / "new") if word == "DIR" else word for word in arguments]
    told = CliRunner().invoke(cli.cli, ["row", str(rows_run), *arguments])
    assert line in str(told.exception if told.exit_code == 1 else told.output)


def test_a_kernel_that_cannot_be_run_says_why() -> None:
    """A text without a split kernel ends in one line that holds its process's last words."""
    provided = host.provide(pipeline.HOST, published.cache())
    with Kernel("mine", b"raise ValueError('no kernel here')", provided) as kernel, pytest.raises(RunError) as caught:
        kernel.run(np.zeros((1, 8), np.float32), np.array([0.5], np.float32), 1)
    assert str(caught.value).startswith("mine: cannot be run again: exit status 1:")
    assert "no kernel here" in str(caught.value)


def test_levels_keep_their_mass() -> None:
    """Fewer tokens on a level weigh what all did, and the background gives what it gained; the rest is as it was."""
    logits = np.array([0, -1, -1, -1, -1, *[-9] * 11], np.float32)
    levels = Levels.of(logits)
    assert (levels.logits, levels.background, levels.row() is None) == ((0.0, -1.0), -9.0, False)
    first, *others = (made.row() for made in levels.thinned(1, levels.tokens[1][:2], 0.9))
    assert first is not None
    assert np.exp(first[1:3]).sum() == pytest.approx(4 * np.exp(-1), rel=1e-6)
    assert np.exp(first[3:]).sum() == pytest.approx(11 * np.exp(-9), rel=1e-6)
    counts = [oracle.reference(each, np.float32(0.9)).count for each in others if each is not None]
    assert counts == [3, 2]  # the boundary at each of the two tokens, the last first


def test_a_donor_is_at_hand_where_hunks_are_picked(real: Row) -> None:
    """The params of a picked patch name three texts, those of a plain one two."""
    assert set(row.texts(real.params)) == {"stock", "patch", "donor"}
    plain = params.check({**real.params.values(), "patch": pipeline.release("0.33.0")}, "plain")
    assert set(row.texts(plain)) == {"stock", "patch"}
