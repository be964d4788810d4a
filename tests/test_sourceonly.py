"""Only the source of a host runs: byte code beside it, or instead of it, does not (toppgate.sourceonly)."""

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
sys.path[0:0] = [{directory!r}]
if {required}:
    from toppgate import sourceonly
    sourceonly.require("thing")
import thing.part
print(thing.part.said)
"""


def said(directory: Path, *, required: bool) -> subprocess.CompletedProcess[str]:
    """Import ``thing.part`` in a fresh process."""
    program = PROGRAM.format(directory=str(directory), required=required)
    writing = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=writing)


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """Return a directory with a package whose byte code says something else than its source."""
    package = tmp_path / "thing"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("said = 'byte code'\n")
    py_compile.compile(str(package / "part.py"), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    (package / "part.py").write_text("said = 'source'\n")
    return tmp_path


def test_byte_code_beside_the_source_is_not_read(planted: Path) -> None:
    """A planted ``.pyc`` that Python would run is passed over, and none is written."""
    assert said(planted, required=False).stdout == "byte code\n"
    before = sorted(planted.rglob("*"))
    assert said(planted, required=True).stdout == "source\n"
    assert [path for path in sorted(planted.rglob("*")) if path not in before] == []


def test_byte_code_without_source_is_refused(planted: Path) -> None:
    """A module that is nothing but byte code does not count as part of a host."""
    (compiled,) = (planted / "thing/__pycache__").glob("part.*.pyc")
    compiled.replace(planted / "thing/part.pyc")
    (planted / "thing/part.py").unlink()
    assert said(planted, required=False).stdout == "byte code\n"
    done = said(planted, required=True)
    assert done.returncode == 1
    assert "ImportError: thing.part: byte code without source" in done.stderr


def test_other_packages_are_left_alone(tmp_path: Path) -> None:
    """A package that was not named is imported as ever."""
    (tmp_path / "other.py").write_text("said = 'other'\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from toppgate import sourceonly; "
    program += "sourceonly.require('thing'); import other; print(type(other.__loader__).__module__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "_frozen_importlib_external\n"
