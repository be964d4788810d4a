"""What a checkout promises before any code runs: its dependencies, its lock, its commands, its notebooks, its text."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
import warnings
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

from toppgate.harness import STAGES
from toppgate.schema import Params

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
BASE = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
#: That release names its own versions, of far more than is used here, so the lock leaves them to it.
UNLOCKED = "vllm"
#: The modules that need an extra; no other module imports what one brings.
CHILDREN = ("worker", "kernels", "timing", "searching", "hunting", "prospect", "workspace", "reproduce")
EXTRAS_OF = dict.fromkeys(CHILDREN, ("kernel",)) | {
    "engines": ("dask", "ray"),
    "real": ("exact",),
    "compiled": ("fast",),
    "signing": ("sign",),
    "picker": ("lab",),
}
LOCKED_EXTRAS = [Requirement(line) for extra, lines in EXTRAS.items() if extra != UNLOCKED for line in lines]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def _locked() -> dict[str, str]:
    """Return {canonical name: version} of the lock; every line that is no comment must be an exact pin."""
    pins: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            name, version = re.fullmatch(r"([\w.-]+)==([\w.]+)", line).groups()  # type: ignore[union-attr]
            pins[canonicalize_name(name)] = version
    return pins


def _satisfied(requirement: Requirement, pins: dict[str, str]) -> bool:
    """Say whether the lock holds the distribution at a version that the requirement accepts."""
    version = pins.get(canonicalize_name(requirement.name))
    return version is not None and requirement.specifier.contains(version)


# Dependencies and lock


@pytest.mark.parametrize(
    "requirement", [*map(Requirement, PROJECT["build-system"]["requires"]), *BASE, *LOCKED_EXTRAS], ids=str
)
def test_the_lock_covers_the_project(requirement: Requirement) -> None:
    """Every dependency, of the build and of each extra but vllm, is pinned at a version in its range."""
    assert _satisfied(requirement, _locked())


def test_the_lock_is_closed() -> None:
    """What an installed pin itself needs is pinned too; torch is left out, since its builds need different things."""
    pins = _locked()
    installed = {canonicalize_name(found.name): found for found in metadata.distributions()}
    assert {"numpy", "pytest", "papermill"} <= installed.keys() & pins.keys()
    for name in installed.keys() & pins.keys() - {"torch"}:
        for requirement in map(Requirement, installed[name].requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert _satisfied(requirement, pins), f"{name} needs {requirement}"


def test_the_lock_is_free_of_builds() -> None:
    """The pins of torch and Triton are the kernel's own, without a local version, and nothing of CUDA is asked for."""
    pins = _locked()
    assert (pins["torch"], pins["triton"]) == ("2.13.0", "3.7.1")
    assert not [name for name in pins if re.match("nvidia|cuda", name)]


def _foreign(path: Path) -> set[str]:
    """Return the top-level names outside the standard library that a module imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names += [node.module or ""]
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"toppgate"}


@pytest.mark.parametrize("path", sorted((ROOT / "toppgate").glob("*.py")), ids=lambda path: path.stem)
def test_every_import_is_declared(path: Path) -> None:
    """A library that a module imports is a declared dependency, not one that happens to come with another."""
    extras = EXTRAS_OF.get(path.stem, ())
    wanted = [*BASE, *(Requirement(line) for extra in extras for line in EXTRAS[extra])]
    # vLLM's files are put on the worker's path by the host, installed or not.
    declared = {canonicalize_name(requirement.name) for requirement in wanted} | (
        {"vllm"} if "kernel" in extras else set()
    )
    # pydantic pins its own core, and has no other name for the type of an error's details.
    homes = {"vllm": ["vllm"], **metadata.packages_distributions(), "pydantic_core": ["pydantic"]}
    for top in _foreign(path):  # what is not installed here goes by its own name
        assert declared & {canonicalize_name(home) for home in homes.get(top, [top])}, top


def test_environment_yml_is_current() -> None:
    """The committed environment.yml is what pyproject2conda makes of pyproject.toml today."""
    command = [sys.executable, "-m", "pyproject2conda", "project", "--yaml-ext", ".yml", "--dry"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    frame, name, text = made.split("\n", 2)
    assert name == "# Creating yaml environment.yml", frame
    assert (ROOT / "environment.yml").read_text("utf-8").strip() == text.strip()


def test_environment_yml_holds_every_way_in() -> None:
    """It is plain YAML with the base dependencies and those of five extras; torch, Triton and vLLM come by pip."""
    made = YAML(typ="safe").load(ROOT / "environment.yml")
    conda = [line for line in made["dependencies"] if isinstance(line, str)]
    (pip,) = [entry["pip"] for entry in made["dependencies"] if not isinstance(entry, str)]
    pip = [line for line in pip if line != "--editable ."]
    names = {canonicalize_name(Requirement(line.replace("python=", "python==")).name) for line in [*conda, *pip]}
    wanted = [
        *BASE,
        *(Requirement(line) for extra in ("kernel", "exact", "sign", "vllm", "lab") for line in EXTRAS[extra]),
    ]
    assert names == {canonicalize_name(requirement.name) for requirement in wanted} | {"python", "pip"}
    assert {"torch", "triton", "vllm"} <= {Requirement(line).name for line in pip}


def test_the_wheel_holds_the_package_and_its_templates(tmp_path: Path) -> None:
    """A wheel builds, and has every file of toppgate/, ``py.typed`` and the templates included, and no other."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / "toppgate", source / "toppgate", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    (source / "README.md").write_text("# toppgate\n")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ".",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
    ]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("toppgate/")}
    kept = {path.relative_to(ROOT).as_posix() for path in (ROOT / "toppgate").rglob("*") if path.is_file()}
    assert packed == {name for name in kept if "__pycache__" not in name}
    assert "toppgate/py.typed" in packed
    assert [name for name in packed if name.startswith("toppgate/templates/")]


# Commands


def _stub(tmp_path: Path, run: int, verify: int) -> list[str]:
    """Return a ``make report`` whose toppgate writes a report unless its status is 2, and exits as told."""
    tool = tmp_path / "venv/bin/toppgate"
    tool.parent.mkdir(parents=True)
    tool.write_text(
        f'#!/bin/sh\n[ "$1" = verify ] && {{ test -d "$2" && exit {verify}; exit 2; }}\n'
        f'[ {run} = 2 ] || {{ mkdir "$4" && echo new >"$4/receipt.json"; }}\nexit {run}\n'
    )
    tool.chmod(0o755)
    (tmp_path / "venv/base.stamp").touch()
    return ["make", "report", f"VENV={tmp_path / 'venv'}", f"REPORT={tmp_path / 'reports/cpu'}"]


@pytest.mark.parametrize(
    ("run", "verify", "succeeds"),
    [(0, 0, True), (1, 0, True), (2, 0, False), (3, 0, False), (0, 1, False), (1, 1, False), (1, 2, False)],
)
def test_make_report_succeeds_for_a_verified_report(tmp_path: Path, run: int, verify: int, succeeds: bool) -> None:
    """PASS and STOP both count as a report; none produced, or one that does not verify, fails."""
    (tmp_path / "reports").mkdir()
    done = subprocess.run(_stub(tmp_path, run, verify), cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode == 0) is succeeds


def test_make_report_keeps_every_report_before(tmp_path: Path) -> None:
    """A report with a receipt is kept under its digest, one without or with a taken name under the time."""
    report = tmp_path / "reports/cpu"
    command = _stub(tmp_path, 0, 0)
    report.mkdir(parents=True)
    (report / "broken").touch()
    said = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout for _ in range(3)]
    timed, digest, taken = (re.search(rf"^moved the previous {report} to (.+)$", text, re.M) for text in said)
    assert timed
    assert digest
    assert taken
    assert (Path(timed[1]) / "broken").exists()
    # SHA-256 of "new" and a newline, the stub's receipt
    assert Path(digest[1]) == tmp_path / "reports/.old/7aa7a5359173d05b"
    assert Path(taken[1]).name.startswith("20")
    assert {path.name for path in (tmp_path / "reports/.old").iterdir()} == {
        Path(m[1]).name for m in (timed, digest, taken)
    }


def test_the_commands_are_the_documented_ones() -> None:
    """README's two commands are targets of the Makefile, and CI runs the second."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert {"report", "test"} <= set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    assert "make test" in (ROOT / ".ci/run").read_text("utf-8").splitlines()
    if (ROOT / "README.md").exists():
        blocks = re.findall(r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
        lines = {line.partition("#")[0].strip().removeprefix("$ ") for block in blocks for line in block.splitlines()}
        assert {"make report", "make test"} <= lines


def test_warnings_are_errors() -> None:
    """The test run itself turns a warning into an error."""
    with pytest.raises(UserWarning, match="a warning"):
        warnings.warn("a warning", stacklevel=1)


# Notebooks


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.name)
def notebook(request: pytest.FixtureRequest) -> Any:
    """Return each committed notebook, checked against the notebook schema."""
    read = nbformat.from_dict(json.loads(request.param.read_text("utf-8")))
    nbformat.validate(read)
    return read


def test_notebooks_are_committed_clean(notebook: Any) -> None:
    """No output and no execution count is committed, and no trace of a run in the metadata."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)
        assert not {"papermill", "execution"} & cell.metadata.keys()
    assert "papermill" not in notebook.metadata


def test_notebooks_are_thin(notebook: Any) -> None:
    """Cells have at most 15 lines of plain Python: no definition, no shell or magic line, no thread or process.

    The parameters have a line each, since papermill does not know the names of any others.
    """
    for cell in notebook.cells:
        assert len(cell.source.splitlines()) <= 15 or "parameters" in cell.metadata.get("tags", []), cell.id
        if cell.cell_type != "code":
            continue
        for node in ast.walk(ast.parse(cell.source, cell.id)):  # a shell or magic line is a syntax error here
            assert not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef), cell.id
            assert not re.search("thread|multiprocessing|concurrent|asyncio|subprocess|system", _names(node)), cell.id


def _names(node: ast.AST) -> str:
    """Return the names that a node imports or reads."""
    match node:
        case ast.Import(names=names):
            return " ".join(alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names):
            return " ".join([module or "", *(alias.name for alias in names)])
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.stem in STAGES], ids=lambda path: path.name)
def test_papermill_knows_every_parameter(path: Path) -> None:
    """The parameters cell names what a params file may hold, in a form in which papermill finds each name."""
    from papermill.inspection import inspect_notebook

    assert set(inspect_notebook(str(path))) == {*Params.model_fields, "run_dir"}


def test_notebooks_can_be_run_and_bound(notebook: Any) -> None:
    """One cell takes the parameters, none may fail or be skipped, and ids are chosen by hand, not at random."""
    tags = [tag for cell in notebook.cells for tag in cell.metadata.get("tags", [])]
    assert tags.count("parameters") == 1
    assert not {"raises-exception", "skip-execution"} & set(tags)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    # nbformat draws 8 hex digits, front ends a UUID
    assert not [name for name in ids if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f-]{27})?", name)]


# Text

# A raised dot breaks each pattern, so that this file does not match itself.  The project has no SPDX line of its own:
# any would be someone else's.
FOREIGN = {
    what: re.compile(pattern.replace("·", "").encode())
    for what, pattern in {
        "a path of one machine": r"(?<![\w.~*-])/(?:w·ork|r·oot|home/\w+|Users/\w+)/|/tmp/d·ev\b|/opt/(?:wheels|p·ypi)",
        "a registry's host": r"p·ypi\.org|pythonh·osted\.org|anac·onda\.(?:org|com)|download\.pyt·orch\.org",
        "a licence line of vLLM": r"SP·DX-(?:License|FileCopyright)",
    }.items()
}


@pytest.mark.parametrize("what", FOREIGN)
def test_no_committed_file_holds(what: str) -> None:
    """No committed file names a place that only one machine has, a registry, or carries vLLM's own text."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert ROOT / "LICENSE" in paths
    found = [path for path in paths if path.is_file() and FOREIGN[what].search(path.read_bytes())]
    assert not found
