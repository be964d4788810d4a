"""What every test shares: tests marked ``browser`` need Chromium, and are skipped aloud where it is missing."""

import shutil
from pathlib import Path

import pytest

pytest.register_assert_rewrite("engine_rows")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked ``browser``, with the reason, on a machine without Chromium."""
    if Path("/usr/bin/chromium").exists() or shutil.which("chromium"):
        return
    missing = pytest.mark.skip(reason="no Chromium: neither /usr/bin/chromium nor chromium on PATH")
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(missing)
