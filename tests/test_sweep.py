"""Many kernels over one matrix: the ladder file, the runs it leaves, and what its page says of releases."""

import json
from pathlib import Path
from typing import Any

import pipeline
import pytest
from click.testing import CliRunner, Result

from tools import compose
from toppgate import cli, fragments, ladder, params, rungs, verify
from toppgate.errors import ParamsError, RunError
from toppgate.schema import Ladder

SHIPPED = pipeline.ROOT / "params" / "ladder.yml"

#: Keeps all but the least likely token.
GENEROUS = "def all_but_the_least(logits, p):\n    return logits > logits.min(dim=-1, keepdim=True).values\n"


def drafted(home: Path, *kernels: dict[str, Any], **more: Any) -> Path:
    """Write the draft of a ladder over a forced and a control case."""
    values = pipeline.draft(pipeline.forced(rows=1), pipeline.control(), retain_inputs=False, **more)
    values = {key: value for key, value in values.items() if key != "patch"}
    path = home / "ladder.yml"
    path.write_text(json.dumps({**values, "kernels": list(kernels)}))
    return path


def rung(name: str, source: dict[str, Any]) -> dict[str, Any]:
    """Return one entry."""
    return {"id": name, "source": source}


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a frozen ladder of stock, the commit, and a function that keeps too much."""
    home = tmp_path_factory.mktemp("ladder")
    (home / "generous.py").write_text(GENEROUS)
    function = {"kind": "callable", "callable": "generous:all_but_the_least"}
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(home)
        path = drafted(home, rung("old", pipeline.STOCK), rung("new", pipeline.PATCH), rung("generous", function))
        ladder.frozen(path)
    return path


# ---------------------------------------------------------------------------------------------- the file


def test_the_shipped_ladder_is_frozen() -> None:
    """It holds, stock has no params of its own, and every other kernel's come out as they were frozen."""
    found = ladder.read(SHIPPED)
    assert [each.id for each in found.kernels[:5]] == ["0.30.0", "0.31.0", "0.32.0", "0a1276e", "0.33.0"]
    assert [each.id for each in found.kernels if each.frozen is None] == ["0.31.0"]
    assert {each.source.kind for each in found.kernels[5:]} == {"callable"}


def test_freezing_the_draft_gives_the_shipped_ladder(tmp_path: Path) -> None:
    """Every digest in it is resolved and computed again; none was edited by hand."""
    path = tmp_path / "ladder.yml"
    path.write_text(json.dumps(compose.DRAFTS["ladder"]()))
    ladder.frozen(path)
    assert path.read_bytes() == SHIPPED.read_bytes()


def test_a_rung_is_a_params_file(frozen: Path, tmp_path: Path) -> None:
    """What is derived for a kernel is what freeze makes of the same comparison written out."""
    found = ladder.read(frozen)
    own = ladder.rung(found, found.kernels[1])
    values = {key: value for key, value in own.values().items() if key not in {"frozen", "change"}}
    path = pipeline.freeze_draft(tmp_path / "p.yml", params.given(values))
    assert path.read_bytes() == params.dump(own)


def test_freezing_again_changes_nothing_and_one_more_entry_only_that(
    frozen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen ladder freezes to itself; with one entry more, the other kernels keep their params."""
    monkeypatch.syspath_prepend(frozen.parent)
    again = tmp_path / "again.yml"
    again.write_bytes(frozen.read_bytes())
    before = ladder.frozen(again)
    assert again.read_bytes() == frozen.read_bytes()
    values = params.values_of(again)
    values["kernels"].append(rung("newest", pipeline.release("0.33.0")))
    again.write_text(json.dumps(values))
    after = ladder.frozen(again)
    assert [each.frozen for each in after.kernels[:3]] == [each.frozen for each in before.kernels]
    assert after.kernels[3].frozen is not None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v["kernels"].append(v["kernels"][1]), "kernels[new].id: stands twice"),
        (lambda v: v["kernels"][1].update(sauce=1), "kernels[new].sauce: unknown key; did you mean 'source'?"),
        (lambda v: v.update(kernels=[]), "kernels: got list [], expected a list of at least 1"),
        (lambda v: v["cases"][1].update(p="1.0"), "cases[control].p, row 0: got 1.0"),
        (lambda v: v["cases"][1].update(select={"first": "1", "at_most": 2}), "cases[control].select: got a sequence"),
    ],
)
def test_a_ladder_keeps_the_rules(change: Any, said: str, tmp_path: Path) -> None:
    """A mistake is named as in a params file."""
    path = drafted(tmp_path, rung("old", pipeline.STOCK), rung("new", pipeline.PATCH))
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    with pytest.raises(ParamsError) as refused:
        ladder.frozen(path)
    assert str(refused.value).startswith(f"{path}: {said}")


def test_an_edit_after_freezing_is_refused(frozen: Path, tmp_path: Path) -> None:
    """A changed value, a changed byte, and a digest made to fit, are all found."""
    text, path = frozen.read_text(), tmp_path / "edited.yml"
    for old, new, said in (
        ('title: "tiny"', 'title: "Tiny"', "params_drift: title differs"),
        ("schema_version: 1\n", "schema_version:  1\n", "not in freeze's own form"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(ParamsError, match=said):
            ladder.read(path)
    values = params.values_of(frozen)
    values["kernels"][1]["slices"][0] += 1
    values["frozen"] = params.freeze_digest({key: values[key] for key in values if key != "frozen"})
    path.write_bytes(ladder.dump(Ladder.model_validate(values)))
    with pytest.raises(ParamsError, match=r"kernels\[new\] comes out otherwise"):
        ladder.read(path)


# ---------------------------------------------------------------------------------------------- the runs


@pytest.fixture(scope="module")
def swept(frozen: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Return the directory that the command made of the ladder, and what it said."""
    out = tmp_path_factory.mktemp("swept") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(frozen.parent)
        patched.chdir(pipeline.ROOT)
        return out, CliRunner().invoke(cli.cli, ["sweep", str(frozen), "--out", str(out)])


def test_each_kernel_but_stock_has_a_run_that_verifies(swept: tuple[Path, Result]) -> None:
    """Both runs are sealed, agree with their own bytes, pages drawn again, and share capture and stock's outputs."""
    out, done = swept
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["generous", "new"]
    verified = {name: verify.verify(out / name) for name in ("new", "generous")}
    assert {name: (found.verdict, found.difference) for name, found in verified.items()} == {
        "new": ("PASS", None),
        "generous": ("STOP", None),
    }
    assert not [note for found in verified.values() for note in found.notes if "not drawn again" in note]
    outputs = [(out / name / "outputs" / "control.stock.safetensors").read_bytes() for name in verified]
    assert outputs[0] == outputs[1]


def test_the_record_says_what_the_runs_say(swept: tuple[Path, Result]) -> None:
    """Codes are those of each run's rows; stock's column is what the rules say of stock."""
    record = rungs.read(str(swept[0]))
    codes = {kernel["id"]: [row["code"] for row in kernel["rows"]] for kernel in record["kernels"]}
    for name in ("new", "generous"):
        rows = [json.loads(line) for line in (swept[0] / name / "rows.jsonl").read_bytes().splitlines()]
        assert codes[name] == [row["code"] for row in rows]
    assert codes["old"] == ["forced_all_masked", "pass", "pass"]
    assert codes["new"] == ["pass"] * 3
    assert codes["generous"][0] == "forced_extra_tokens"
    assert [kernel["verdict"] for kernel in record["kernels"]] == [None, "PASS", "STOP"]


def test_the_page_links_each_run_and_says_what_changed(swept: tuple[Path, Result]) -> None:
    """One page without scripts: links into the runs, the code's history, and no run for stock itself."""
    out, done = swept
    page = (out / "ladder.html").read_text(encoding="utf-8")
    assert 'href="new/3_gate.html#case:forced"' in page
    assert 'href="old/' not in page
    assert "<script" not in page
    assert "forced_all_masked: in old on, gone from new" in done.output.splitlines()
    assert "in old on, gone from new" in page


def test_nothing_is_left_behind_or_overwritten(swept: tuple[Path, Result], frozen: Path) -> None:
    """Scratch and inputs that can be made again are gone; a second sweep into the same place is refused."""
    assert not list(swept[0].rglob("scratch"))
    assert not list(swept[0].glob("*/inputs/*.safetensors"))
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(frozen.parent)
        again = CliRunner().invoke(cli.cli, ["sweep", str(frozen), "--out", str(swept[0])])
    assert isinstance(again.exception, RunError)
    assert "never overwritten" in str(again.exception)


# ---------------------------------------------------------------------------------------------- the lineage


@pytest.mark.parametrize(
    ("counts", "story"),
    [
        ([2, 2, 0], "in a on, gone from c"),
        ([0, 1, 0], "in b on, gone from c"),
        ([0, 0, 3], "in c on"),
        ([1, 0, 1], "in a on, gone from b, in c on"),
        ([0, 0, 0], "in no release"),
    ],
)
def test_a_code_comes_and_goes(counts: list[int], story: str) -> None:
    """The first release with a code, and the first without it again, are named."""
    assert rungs._story(list(zip("abc", counts, strict=True))) == story


def test_a_directory_without_a_record_is_named(tmp_path: Path) -> None:
    """Neither a missing file nor another record is taken for a sweep."""
    with pytest.raises(RunError, match=r"holds no ladder\.json"):
        rungs.read(str(tmp_path))
    (tmp_path / "ladder.json").write_text('{"schema": "toppgate/mutants/1"}')
    with pytest.raises(RunError, match="expected schema"):
        rungs.read(str(tmp_path))


@pytest.mark.parametrize(
    ("numbers", "written"),
    [([], ""), ([4], "4"), ([0, 1], "0, 1"), ([0, 1, 2, 3, 7, 8, 10], "0 to 3, 7, 8, 10"), ([5, 6, 7], "5 to 7")],
)
def test_rows_in_a_row_are_written_as_a_span(numbers: list[int], written: str) -> None:
    """Three and more that follow each other; two are shorter as they are."""
    assert fragments.spans(numbers) == written


def test_a_ladder_and_params_of_one_run_are_told_apart() -> None:
    """Each says which command runs it."""
    with pytest.raises(ParamsError, match=r"kernels: got a ladder, .*; toppgate sweep runs a ladder$"):
        params.read(pipeline.ROOT / "params/ladder.yml")
    with pytest.raises(ParamsError, match=r"patch: got params of one run, .*; toppgate run runs them$"):
        ladder.read(pipeline.ROOT / "params/cpu.yml")
