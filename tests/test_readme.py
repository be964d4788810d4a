"""The README says what is there: its commands, options, files, statement and figures; so do the pages beside it."""

import hashlib
import itertools
import re
from pathlib import Path

import click
import pytest

from toppgate import codes, ladder
from toppgate.cli import cli
from toppgate.params import check, check_frozen, read
from toppgate.plain_yaml import parse

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^( *)```(\w+)\n(.*?)^ *```", TEXT, re.MULTILINE | re.DOTALL)
#: Every line of a shell block, and every command that stands in the text.
COMMANDS = [
    line.partition("#")[0].strip() for _, kind, block in BLOCKS if kind == "sh" for line in block.splitlines()
] + re.findall(r"`((?:toppgate|make|cp|papermill) [^`]+)`", TEXT)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "params/inputs/README.md"]


def test_blocks_are_read() -> None:
    """The README has shell and YAML blocks, all of them closed, and each command is one that is tested below."""
    assert TEXT.count("```") == 2 * len(BLOCKS)
    assert {kind for _, kind, _ in BLOCKS} == {"sh", "yaml"}
    known = {"make", ".", "toppgate", "mkdir", "papermill", "git", "cp", "pip", "openssl"}
    assert {command.split()[0] for command in COMMANDS} == known


def test_make_targets_exist() -> None:
    """The first block is the two commands; every target that is named is in the Makefile."""
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert [line.partition("#")[0].strip() for line in BLOCKS[0][2].splitlines()] == ["make report", "make test"]
    named = {command.split()[1] for command in COMMANDS if command.startswith("make ")}
    assert named <= targets


@pytest.mark.parametrize("command", sorted({c for c in COMMANDS if c.startswith("toppgate ")}))
def test_commands_parse(command: str) -> None:
    """A command's name, arguments and options are those of the command line."""
    _, name, *arguments = command.split()
    found = cli.commands[name]
    context = click.Context(found, info_name=name)
    values, rest, _ = found.make_parser(context).parse_args(list(arguments))
    assert not rest
    assert {"params", "directory", "before"} & {key for key, value in values.items() if isinstance(value, str)}


def test_every_command_is_explained() -> None:
    """No command is left out of the README, nor of the table of exit statuses."""
    table = TEXT.partition("## Exit status")[2].partition("\n## ")[0]
    for name in cli.commands:
        assert f"toppgate {name} " in TEXT
        assert f"`{name}`" in table


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("papermill ") and " -f " in c])
def test_papermill_calls_name_what_is_there(command: str) -> None:
    """Each bare call runs a stage notebook of the checkout into the run directory that it also passes on."""
    _, notebook, output, *options = command.split()
    named = dict(zip(options[::2], options[1::2], strict=False))
    assert (ROOT / notebook).is_file()
    assert (ROOT / named["-f"]).is_file()
    assert options[4:] == ["-r", "run_dir", str(Path(output).parent)]
    assert Path(output).name == Path(notebook).name


def test_the_exploring_notebook_takes_what_it_is_given() -> None:
    """The call of the notebook that is no stage passes its parameters, each of them known there."""
    from papermill.inspection import inspect_notebook

    (command,) = [c for c in COMMANDS if c.startswith("papermill ") and " -f " not in c]
    _, notebook, _, *options = command.split()
    given = {name for flag, name in itertools.pairwise(options) if flag in ("-r", "-p")}
    assert given == set(inspect_notebook(str(ROOT / notebook))) == {"run_dir", "case", "row"}


def test_the_stages_are_called_in_order_and_sealed() -> None:
    """The bare calls are the three stages in order, in the block that ends with seal."""
    (block,) = [block.split("\n") for _, _, block in BLOCKS if "toppgate seal" in block]
    stages = [line.split()[1].removeprefix("notebooks/") for line in block if line.startswith("papermill")]
    assert stages == ["1_capture.ipynb", "2_execute.ipynb", "3_gate.ipynb"]
    assert block[-2].startswith("toppgate seal ")


def test_the_statement_is_said_word_for_word() -> None:
    """What a PASS says is quoted as the receipt has it, in the README and in the contract."""
    assert f"> {codes.STATEMENT}\n" in TEXT
    assert codes.STATEMENT in " ".join((ROOT / "docs/contract.md").read_text("utf-8").split())


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_pages_name_are_there(page: Path) -> None:
    """Every path into the checkout that a page names is there, archived runs and the linked picture included."""
    text = page.read_text("utf-8")
    paths = re.findall(
        r"(?<![\w./])((?:docs|notebooks|params|tests|tools)/[\w./-]*\w\.(?:md|ipynb|yml|json|png|safetensors))", text
    )
    paths = [path for path in paths if not re.search(r"/(?:mine|X)\.yml$", path)]
    paths += re.findall(r"reports/(?:README|archive)[\w./-]*\w", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_yaml_blocks_are_sources() -> None:
    """Each YAML block is a patch that the params schema takes in the place of the one that is shipped."""
    shipped = read(ROOT / "params/cpu.yml").values()
    blocks = [re.sub(f"^{indent}", "", block, flags=re.MULTILINE) for indent, kind, block in BLOCKS if kind == "yaml"]
    kinds = [check({**shipped, **parse(block, "README")}, "README").patch.kind for block in blocks]
    assert kinds == ["file", "git", "callable"]


def test_what_is_said_of_shipped_params_is_so() -> None:
    """Shipped params files are frozen, the example's case and row exist, and its select block has three lines."""
    for path in re.findall(r"params/[\w.-]+\.yml", TEXT):
        if "ladder" in path:
            ladder.read(ROOT / path)
        elif "mine" not in path:
            check_frozen(read(ROOT / path), path)
    cases = {case.id: case for case in read(ROOT / "params/cpu.yml").cases}
    assert cases["real-bfloat16-p0.9"].batch > 6
    text = (ROOT / "params/cpu.yml").read_text("utf-8")
    assert len(re.findall(r"^  select:\n(?:    .*\n){2}(?=  \w)", text, re.MULTILINE)) == 1


def test_captured_inputs_are_the_documented_ones() -> None:
    """Every captured file has a section in params/inputs/README.md with its SHA-256, and no other has."""
    text = (ROOT / "params/inputs/README.md").read_text("utf-8")
    said = dict(re.findall(r"^## `([\w.-]+)`\n\n- SHA-256 `([0-9a-f]{64})`$", text, re.MULTILINE))
    files = sorted((ROOT / "params/inputs").glob("*.safetensors"))
    assert said == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_picture_is_small() -> None:
    """The screenshot is at most 250 kB."""
    assert 10_000 < (ROOT / "docs/report.png").stat().st_size <= 250_000
