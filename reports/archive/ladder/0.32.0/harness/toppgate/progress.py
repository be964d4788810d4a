"""One line a case for whoever watches a terminal; silent in notebooks, so that archived ones hold no times."""

import os
from pathlib import Path

#: ``toppgate run`` names a file here and shows its lines; without it nothing is said.
VARIABLE = "TOPPGATE_PROGRESS"


def say(line: str) -> None:
    """Append one line for the watcher, if there is one."""
    path = os.environ.get(VARIABLE)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
