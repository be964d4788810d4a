"""One line a case for whoever watches a terminal; silent in notebooks, so that archived ones hold no times.

What runs in another process of this machine says its lines to a file, which the watcher's variable names.
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

#: Names the file of the watcher; without it nothing is said.
VARIABLE: Final = "TOPPGATE_PROGRESS"

#: Seconds between two looks.
PAUSE: Final = 0.5


def say(line: str) -> None:
    """Append one line for the watcher, if there is one."""
    path = os.environ.get(VARIABLE)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


@contextlib.contextmanager
def told(tell: Callable[[str], object]) -> Iterator[None]:
    """Tell what is said by anything started from here on, from a thread of its own, and all of it by the end."""
    with tempfile.TemporaryDirectory(prefix="toppgate-") as scratch:
        file = Path(scratch) / "progress"
        file.touch()
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(file)
        over = threading.Event()
        thread = threading.Thread(target=_listen, args=(file, tell, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before


def _listen(file: Path, tell: Callable[[str], object], over: threading.Event) -> None:
    with file.open(encoding="utf-8") as lines:
        while True:
            last = over.wait(PAUSE)
            for line in lines:
                tell(line.rstrip("\n"))
            if last:
                return
