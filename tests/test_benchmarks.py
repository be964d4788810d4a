"""The benchmark runs and compares what it says; how long anything takes is asserted nowhere."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_oracles_benchmark_prints_its_table() -> None:
    """On a small vocabulary there is one line for each kind of rows, with a positive time for each contender."""
    code = "import oracle; oracle.VOCABULARIES = (300,); print(*oracle.comparison(2, 1), sep='\\n')"
    path = f"import sys; sys.path[:0] = {[str(ROOT / 'benchmarks'), str(ROOT)]!r}; "
    done = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, check=True)
    head, _, *lines = (line.strip("|").split("|") for line in done.stdout.splitlines())
    assert [line[0].strip() for line in lines][:2] == ["normal 1", "normal 3"]
    assert len(lines) == 6
    for line in lines:
        assert len(line) == len(head)
        assert all(float(value) > 0 for value in line[2:8])
        assert [len(ratios.split(",")) for ratios in line[8:]] == [4, 4]
