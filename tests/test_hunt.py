"""The hunt: its screen against the gate's own rules, and the rows that it writes."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pipeline
import pytest
import safetensors.numpy
from click.testing import CliRunner, Result
from numpy.typing import NDArray

from toppgate import (
    cli,
    codes,
    engines,
    freeze,
    gate,
    host,
    hunt,
    inputs,
    mutate,
    oracle,
    params,
    plain_yaml,
    published,
    rerun,
    suspect,
    trophies,
)
from toppgate.errors import ParamsError, RunError
from toppgate.mutate import Mutant
from toppgate.schema import Case
from toppgate.smaller import Trophy
from toppgate.suspect import Suspect

torch = pytest.importorskip("torch", reason="needs the extra kernel")

from toppgate import prospect  # noqa: E402 - imports torch

ROWS, TOKENS = 16, 200

#: A kernel that keeps too little.
STRICT = Mutant("strict", "none", "_topp_sb_mask_kernel", r"prob > pivot", r"prob > 2 * pivot", "It keeps too little.")

#: Logits that stand for captured ones.
REAL = torch.linspace(-20, 5, 4 * 512).reshape(4, 512).sin() * 9


# ---------------------------------------------------------------------------------------------- the screen


def drawn(kind: str, seed: int = 1) -> prospect.Drawn:
    """Return rows of a kind on the CPU."""
    return prospect.draw(kind, torch.Generator().manual_seed(seed), ROWS, TOKENS, REAL)


@pytest.mark.parametrize("kind", prospect.KINDS)
def test_every_drawn_row_is_admissible_and_its_order_canonical(kind: str) -> None:
    """Finite logits, 0 < p < 1, the same rows for the same seed, and ties by token id."""
    found = drawn(kind)
    for row, p, order in zip(found.logits.numpy(), found.p.numpy(), found.order.numpy(), strict=True):
        assert gate.admissible(row, p) == codes.PASS
        assert (order == oracle.reference(row, p).order).all()
    assert (drawn(kind).logits == found.logits).all()
    assert (drawn(kind, seed=2).logits != found.logits).any()


def test_another_seed_or_block_draws_other_rows() -> None:
    """On a CPU too, where a generator looks at 32 bits of its seed alone."""
    pairs = [(seed, number) for seed in (0, 1, 2, 2**31 - 1) for number in (0, 1, 70_000)]
    drawn = {float(torch.rand(1, generator=prospect.seeded("cpu", *pair), dtype=torch.float64)) for pair in pairs}
    assert len(drawn) == len(pairs)


def masks(found: prospect.Drawn, damage: int) -> Iterator[NDArray[np.bool_]]:
    """Yield what a side keeps of each row: the oracle's prefix, then cut, lengthened, holed, or with another tie."""
    for number, (row, p) in enumerate(zip(found.logits.numpy(), found.p.numpy(), strict=True)):
        reference = oracle.reference(row, p)
        size = reference.count + (0, -1, 2, 5, 0)[(number + damage) % 5]
        kept = np.zeros(TOKENS, np.bool_)
        kept[reference.order[: max(size, 0)]] = True
        if (number + damage) % 5 == 4 and 0 < reference.count < TOKENS:
            kept[reference.order[[reference.count - 1, reference.count]]] = [False, True]
        yield kept


@pytest.mark.parametrize("damage", range(5))
@pytest.mark.parametrize("kind", prospect.KINDS)
def test_the_screen_finds_what_the_gate_finds(kind: str, damage: int) -> None:
    """Row by row the same code; but for rows whose boundary float64 sums cannot place, which are passed over."""
    found = drawn(kind)
    sides = {"stock": list(masks(found, 0)), "patch": list(masks(found, damage))}
    outputs = {
        side: torch.where(torch.from_numpy(np.stack(kept)), found.logits, -torch.inf) for side, kept in sides.items()
    }
    screened = prospect.screen(found, outputs["stock"], outputs["patch"]).tolist()
    unclear = 0
    for row, finding in enumerate(screened):
        logits, p = found.logits[row].numpy(), found.p[row].numpy()[()]
        reference = oracle.reference(logits, p)
        boundary = gate.Boundary(reference.order, reference.count, reference.certified)
        stock, patch = (gate.Output(sides[side][row]) for side in ("stock", "patch"))
        code = gate.judge_ordinary(logits, boundary, stock=stock, patch=patch).code
        said = codes.PASS if finding in (-1, len(prospect.FINDINGS) - 1) else prospect.FINDINGS[finding]
        unclear += said != code and finding == -1
        assert said == code or finding == -1
    assert unclear <= (ROWS if kind in ("near uniform", "adjacent") else 2)


def test_an_altered_value_is_found() -> None:
    """What is neither the input's bits nor minus infinity, a NaN included, is seen on either side."""
    found = drawn("normal")
    whole, wrong, nan = found.logits.clone(), found.logits.clone(), found.logits.clone()
    wrong[3, 5] += 1
    nan[4, 0] = torch.nan
    altered = prospect.FINDINGS.index("output_altered")
    assert (prospect.screen(found, whole, wrong) == altered).nonzero().tolist() == [[3]]
    assert (prospect.screen(found, nan, whole) == altered).nonzero().tolist() == [[4]]


# ---------------------------------------------------------------------------------------------- suspects


def one(logits: list[float], p: float, stock: list[int], patch: list[int], finding: str = "") -> Suspect:
    """Return a judged suspect; ``stock`` and ``patch`` are the tokens kept."""
    ours, theirs = (np.isin(np.arange(len(logits)), ids) for ids in (patch, stock))
    row = np.array(logits, np.float32)
    return suspect.judged(Suspect(7, "few values", 2, finding, row, np.float32(p), stock=theirs, patch=ours))


def whole(found: Suspect) -> Trophy:
    """Return a suspect to be written as it was drawn."""
    return Trophy(found, found.logits, "")


#: Twelve equal tokens, of which eight reach p = 0.63.
TIED = [0.0] * 12


@pytest.mark.parametrize(
    ("found", "code", "shown"),
    [
        (one(TIED, 0.63, [*range(8)], [*range(7), 9]), "patch_noncanonical_tie", {"tie budget"}),
        (one(TIED, 0.63, [*range(7)], [*range(8)]), "stock_under_keep", {"stock under-keep"}),
        (one([1e6] * 12, 0.63, [*range(7)], [*range(8)]), "stock_under_keep", set()),
        (one(TIED, 0.63, [*range(10)], [*range(10)]), codes.PASS, {"over-keep in the lowest tie group"}),
        (one(TIED, 0.63, [*range(12)], [*range(12)]), "count_bound_exceeded", {"over-keep in the lowest tie group"}),
    ],
)
def test_known_faults_are_told_apart(found: Suspect, code: str, shown: set[str]) -> None:
    """Each by the gate's code and by what the row shows."""
    assert found.code == code
    assert {name for name, (_, shows) in suspect.KNOWN.items() if shows(found)} == shown


def test_a_choice_within_the_bands_is_known_by_its_probabilities() -> None:
    """A passed-over token that is as likely as a kept one, to 1e-9, is the band's; one that is likelier is not."""
    band = one([20.0, 1e-3, 0.0, -5.0], 0.9999999, [0, 1, 2], [0, 2])
    apart = one([3.0, 2.0, 1.0, -5.0], 0.9, [0, 1, 2], [0, 2])
    assert band.code == apart.code == "patch_hole"
    _, shows = suspect.KNOWN["choice within 1e-9 bands"]
    assert (shows(band), shows(apart)) == (True, False)


# ---------------------------------------------------------------------------------------------- rows written


def test_parts_give_the_row_back_bit_for_bit() -> None:
    """Runs, short runs and single numbers, of any fp32, stand for the very bits."""
    bits = np.random.default_rng(1).integers(0, 2**32, 300, np.uint32).view(np.float32)
    row = np.concatenate([bits[np.isfinite(bits)], np.zeros(5, np.float32), bits[:2], [np.float32(0.1)] * 2, [1e-45]])
    row = row[np.isfinite(row)].astype(np.float32)
    rows = {"kind": "literal", "rows": [trophies.parts(row)]}
    case = Case.model_validate({"id": "one", "role": "ordinary", "rows": rows, "p": "0.5"})
    assert (inputs.generate(case).logits[0].view(np.uint32) == row.view(np.uint32)).all()


def test_the_smallest_of_each_code_and_cause_are_chosen() -> None:
    """Two of each, by the length of what is written; a row that passes is none."""
    tie = ([*range(8)], [*range(7), 9])
    stops = [
        replace(one([*TIED, *tail], 0.63, *tie), at=at)
        for at, tail in enumerate([[-50.0, -51.0], [], [-50.0], [-52.0, -53.0, -54.0]])
    ]
    assert len({(found.code, found.cause) for found in stops}) == 1
    assert [found.at for found in trophies.chosen([*stops, one(TIED, 0.63, [*range(8)], [*range(8)])])] == [1, 2]


def nodes(data: Any) -> int:
    """Return how many values YAML has in it."""
    if isinstance(data, dict):
        return 1 + sum(1 + nodes(value) for value in data.values())
    return 1 + sum(map(nodes, data)) if isinstance(data, list) else 1


def test_a_row_takes_the_values_that_it_is_counted_for(tmp_path: Path) -> None:
    """What a params file holds more with a row in it, bits included, is what was counted; too much is left out."""
    tie = ([*range(8)], [*range(7), 9])
    rows = [one([*TIED, *tail], 0.63, *tie) for tail in ([], [-50.0], [-50.0] * 3 + [-51.5] * 2)]
    checked = params.read(pipeline.freeze_draft(tmp_path / "p.yml", pipeline.draft(pipeline.control())))
    counted = []
    for row in rows:
        frozen = plain_yaml.parse(trophies._frozen(tmp_path / "r.yml", checked, [whole(row)], 1).read_text(), "r.yml")
        counted.append(sum(map(nodes, frozen["cases"][0]["rows"]["rows"][0])))
    assert counted == [trophies.values(row.logits) for row in rows]
    assert len(set(counted)) == 3
    large = replace(rows[0], logits=np.arange(trophies.ROOM, dtype=np.float32))
    assert trophies.fitting([whole(large), whole(rows[0])])[0].suspect is rows[0]


def test_rows_of_a_hunt_are_never_controls() -> None:
    """The rules of a params file refuse it."""
    case = {**trophies._case(whole(one(TIED, 0.63, [*range(8)], [*range(7), 9])), 1), "role": "control"}
    with pytest.raises(ParamsError, match="selected_by: got hunt, expected no control among the roles"):
        params.check(pipeline.draft(case), "draft")


@pytest.fixture(scope="module")
def hunted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Return what the command made of 40 rows of a kernel that keeps too little, in two processes."""
    home = tmp_path_factory.mktemp("hunt")
    (home / "wrong.py").write_text(mutate.apply(pipeline.text(pipeline.PATCH), STRICT))
    wrong = {"kind": "file", "path": str(home / "wrong.py")}
    safetensors.numpy.save_file({"logits": REAL.numpy()}, home / "real.safetensors")
    real = {"kind": "file", "path": str(home / "real.safetensors"), "tensor": "logits", "rows": [0, 2]}
    cases = [pipeline.control(), pipeline.case("real", "ordinary", real)]
    path = pipeline.freeze_draft(home / "p.yml", pipeline.draft(*cases, patch=wrong))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hunt, "SHAPES", {"interpreter": ((40, 1), (61, 2))})
        patched.setattr(hunt, "ROWS", {"interpreter": (4, 4)})
        arguments = ["hunt", str(path), "--rows", "39", "--workers", "2", "--out", str(home / "out")]
        return home / "out", CliRunner().invoke(cli.cli, arguments)


def test_a_wrong_kernel_is_found_out(hunted: tuple[Path, Result]) -> None:
    """Every block came back, rows that it under-keeps are found, and oracle and gate confirm them."""
    out, done = hunted
    assert done.exit_code == 0, done.output
    record = json.loads((out / "hunt.json").read_bytes())
    assert (record["rows"], record["lost"]) == (40, [])
    assert record["kinds"] == dict.fromkeys(prospect.KINDS, 4) | {"normal": 8, "captured": 8}
    found = {each["finding"]: each for each in record["findings"]}
    assert set(found["patch_under_keep"]["judged"]) == {"patch_under_keep"}
    assert done.output.startswith("exploratory")


def test_what_is_written_is_frozen_and_stops_again(hunted: tuple[Path, Result]) -> None:
    """The file is a params file as freeze leaves it, of ordinary rows that say where they come from."""
    path = hunted[0] / "rows.yml"
    checked = params.read(path)
    params.check_frozen(checked, str(path))
    assert {(case.role, case.selected_by, case.rows.kind) for case in checked.cases} == {
        ("ordinary", "hunt", "literal")
    }
    before = path.read_bytes()
    freeze.freeze(path)
    assert path.read_bytes() == before
    written = json.loads((hunted[0] / "hunt.json").read_bytes())["written"]
    assert [line["case"] for line in written if line["again"] == line["code"]] == [case.id for case in checked.cases]
    sizes = {case.id: case.shape[1] for case in checked.cases if case.shape is not None}
    assert sizes == {line["case"]: line["tokens"] for line in written if line["again"] == line["code"]}
    sizes_said = [pair for line in written for pair in re.findall(r"(\d+) to (\d+)", line["how"])]
    assert any(int(after) < int(before) for before, after in sizes_said)


#: Put behind the patch: on a launch with a row whose logits never fall, it does what no kernel may; it refuses a launch
#: that has not three rows, as one of another size would have to be compiled.
BREAKS = """
_whole = _apply_topp_split
def _apply_topp_split(logits, k, p, mask_value, num_sm):
    assert len(logits) == 3
    if bool((logits.diff(dim=1) >= 0).all(dim=1).any()):
        {deed}
    _whole(logits, k, p, mask_value, num_sm)
"""


@pytest.mark.parametrize(
    ("deed", "problem"),
    [
        ("while True: pass", "nothing came of it in 6 s"),
        ("raise RuntimeError('not this row')", "exit status 1: RuntimeError: not this row"),
    ],
)
def test_a_row_that_breaks_a_kernel_is_found(deed: str, problem: str) -> None:
    """The block is narrowed down to such a row and side, until it is screened without them; the others are as well."""
    text = pipeline.text(pipeline.PATCH)
    job = hunt.Job(
        device="interpreter",
        number=0,
        blocks=(0, 5, 6),
        rows=3,
        batch=3,
        shapes=((40, 1),),
        seed=1,
        stock=text.encode(),
        patch=f"{text}\n{BREAKS.format(deed=deed)}".encode(),
        host=pipeline.HOST,
        captured=(),
        silence=6.0,
    )
    found = hunt.share(job)
    kinds = [kind for kind in prospect.KINDS if kind != "captured"]
    assert [(block["block"], block["kind"]) for block in found.blocks] == [(at, kinds[at]) for at in (0, 5, 6)]
    assert [block["rows"] for block in found.blocks] == [3, 1, 3]
    said = [(each["block"], each["side"], each["row"], each["kind"]) for each in found.broken]
    assert said == [(5, "patch", row, "long tail") for row in (0, 2)]
    assert all(each["problem"].startswith(problem) for each in found.broken)
    assert found.problem is None
    broken = found.broken[0]
    held = safetensors.numpy.load(broken["tensors"])
    assert (np.diff(held["logits"][0]) >= 0).all()
    line = hunt._named(broken, 3)
    assert (line["at"], line["file"]) == (15, "broken-15.safetensors")
    json.dumps(line)


def test_a_kernel_that_cannot_start_is_said_at_once(tmp_path: Path) -> None:
    """It is not tried block by block."""
    wrong = pipeline.kernel(tmp_path / "wrong.py", pipeline.PATCH, behind="raise RuntimeError('no kernel today')")
    path = pipeline.freeze_draft(tmp_path / "p.yml", pipeline.draft(pipeline.control(), patch=wrong))
    with pytest.raises(RunError, match="nothing was hunted: patch: exit status 1: RuntimeError: no kernel today"):
        hunt.hunt(path, tmp_path / "out", 64, 1, workers=1)


def test_a_suspect_beside_a_broken_row_keeps_its_number(tmp_path: Path) -> None:
    """A block that lost a row holds fewer rows, and its place among all rows is what it was."""
    path = tmp_path / "16-3.safetensors"
    safetensors.numpy.save_file({"p": np.ones(1, np.float32)}, path)
    block = {"block": 16, "rows": 15, "kind": "normal", "slices": 1}
    assert hunt._read(block, {"file": str(path), "row": 3, "finding": "patch_hole"}, 16 * 16)["at"] == 259


def test_a_place_that_cannot_be_written_is_said_before_the_hunt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is asked for."""
    path = pipeline.freeze_draft(tmp_path / "p.yml", pipeline.draft(pipeline.control()))
    (tmp_path / "file").touch()
    monkeypatch.setattr(engines, "each", lambda *_, **__: pytest.fail("it hunts"))
    with pytest.raises(RunError, match="file: cannot be written: Not a directory"):
        hunt.hunt(path, tmp_path / "file" / "out", 64, 1, workers=1)


def test_what_rows_are_made_smaller_in_lies_where_the_hunt_says(tmp_path: Path) -> None:
    """So that nothing is left where the process that makes them smaller is killed."""
    texts = {side: pipeline.text(spec).encode() for side, spec in (("a", pipeline.STOCK), ("b", pipeline.PATCH))}
    with rerun.started(texts, host.provide(pipeline.HOST, published.cache()), tmp_path):
        assert len(list(tmp_path.glob("toppgate-*/job.json"))) == 2
    assert not list(tmp_path.iterdir())


def test_the_first_rows_do_not_depend_on_how_the_work_was_shared() -> None:
    """Suspects of shares in any order and number come out as the first of each finding and kind, by row."""
    row, kept = np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32)
    named = {"kind": "normal", "slices": 1, "finding": "patch_hole", "logits": row, "p": np.ones(1, np.float32)}
    each = [{**named, "at": at, "stock": kept, "patch": kept} for at in (9, 2, 7, 4, 1, 8)]
    together = hunt.Share((), tuple(each))
    apart = [hunt.Share((), tuple(each[:2])), hunt.Share((), tuple(each[2:]))]
    assert [s.at for s in hunt._first([together])] == [s.at for s in hunt._first(apart)] == [1, 2, 4, 7]
