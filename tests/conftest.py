"""What every test shares: tests marked ``browser`` need Chromium, and are skipped aloud where it is missing.

Runs of the pipeline cost seconds, so each is made once a session.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

pytest.register_assert_rewrite("engine_rows", "pipeline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked ``browser``, with the reason, on a machine without Chromium."""
    if Path("/usr/bin/chromium").exists() or shutil.which("chromium"):
        return
    missing = pytest.mark.skip(reason="no Chromium: neither /usr/bin/chromium nor chromium on PATH")
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(missing)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return frozen params that a right patch passes: rows of 64 tokens in every role but reproduction."""
    import pipeline

    cases = [
        pipeline.forced(),
        pipeline.control(),
        pipeline.case("ordinary", "ordinary", pipeline.normal(1, seed=7)),
        pipeline.case("probe", "probe", pipeline.literal([0.0, "nan", 1.0]), expect="nonfinite_logits"),
        pipeline.case("over", "probe", pipeline.normal(1, vocabulary=8193), expect="limit_exceeded"),
    ]
    return pipeline.freeze_draft(tmp_path_factory.mktemp("params") / "tiny.yml", pipeline.draft(*cases))


@pytest.fixture(scope="session")
def run_by_command(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Return the sealed run that ``toppgate run`` made of the tiny params; copy it before changing anything."""
    import pipeline

    directory = tmp_path_factory.mktemp("command") / "run"
    return directory, pipeline.toppgate("run", tiny, "--out", directory, "--json")


@pytest.fixture(scope="session")
def run_by_papermill(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Return the run that three bare papermill calls and ``seal`` made; copy it before changing anything."""
    import pipeline

    directory = tmp_path_factory.mktemp("papermill") / "run"
    for name in ("1_capture", "2_execute", "3_gate"):
        done = pipeline.papermill(name, tiny, directory)
        assert done.returncode == 0, done.stderr
    return directory, pipeline.toppgate("seal", directory, "--json")


@pytest.fixture(scope="session")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Return a sealed STOP that real kernels gave: stock in the patch's place, and the patch in stock's."""
    import pipeline

    home = tmp_path_factory.mktemp("stopped")
    values = pipeline.draft(pipeline.forced(), pipeline.control(), stock=pipeline.PATCH, patch=pipeline.STOCK)
    path = pipeline.freeze_draft(home / "params.yml", values)
    return home / "run", pipeline.toppgate("run", path, "--out", home / "run", "--json")


@pytest.fixture(scope="session")
def rows_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run up to its verdict, whose rows are taken apart.

    ``real`` keeps 42 tokens too many, ``ties`` is what that comes down to, of ``lost`` stock loses all.
    """
    import pipeline

    home = tmp_path_factory.mktemp("rows")
    file = str(pipeline.ROOT / "params/inputs/smollm2-135m-logits.safetensors")
    real = {"kind": "file", "path": file, "tensor": "logits", "rows": [6, 7], "round": "bfloat16"}
    lengths = ((0, 1), (-6, 4), (-20, 8192 - 5), (-6, 4), (-20, 16_391 - 8196))
    ties = {"kind": "literal", "rows": [[{"value": str(value), "repeat": count} for value, count in lengths]]}
    cases = [
        pipeline.case("good", "control", pipeline.normal(2, scale="3")),
        pipeline.case("real", "ordinary", real, "0.99", compute_units=2),
        pipeline.case("ties", "ordinary", ties, "0.99", compute_units=2),
        pipeline.case("lost", "ordinary", pipeline.literal(["1e9", "-1", "-2"]), "0.9"),
        pipeline.case("nan", "probe", pipeline.literal([0.0, "nan", 1.0]), expect="nonfinite_logits"),
        pipeline.forced(rows=1),
    ]
    path = pipeline.freeze_draft(home / "params.yml", pipeline.draft(*cases, limits={"vocabulary": 50_000}))
    directory = home / "run"
    directory.mkdir()
    pipeline.captured(path, directory)
    pipeline.executed(path, directory)
    pipeline.judged(path, directory)
    return directory
