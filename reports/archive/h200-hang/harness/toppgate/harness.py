"""The package's and the notebooks' own files: their digest, and the copy that a run keeps (contract, section 7)."""

import shutil
from pathlib import Path

from toppgate import digests

PACKAGE = Path(__file__).resolve().parent

#: toppgate is used from a checkout: the notebooks lie beside the package.
NOTEBOOKS = PACKAGE.parent / "notebooks"

#: The stage notebooks, in order.
STAGES = ("1_capture", "2_execute", "3_gate")


def files() -> dict[str, Path]:
    """Return {path inside a harness copy: file} of everything that decides what a run does or shows."""
    package = {
        f"toppgate/{path.relative_to(PACKAGE).as_posix()}": path
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    notebooks = {f"notebooks/{name}.ipynb": NOTEBOOKS / f"{name}.ipynb" for name in STAGES}
    return dict(sorted((package | notebooks).items()))


def digest() -> digests.Sha256:
    """Return one digest over the harness as it lies on disk now."""
    return digests.sha256_tree({name: digests.sha256_file(path) for name, path in files().items()})


def copy(target: Path) -> None:
    """Write the harness copy of a run below ``target``."""
    for name, path in files().items():
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def digest_of_copy(target: Path) -> digests.Sha256:
    """Return the digest over a run's copy, whatever it holds."""
    found = {p.relative_to(target).as_posix(): digests.sha256_file(p) for p in target.rglob("*") if p.is_file()}
    return digests.sha256_tree(found)
