"""Runs a command that dies with whoever started it: ``python -P -m toppgate.leash PARENT COMMAND…``.

A runner that is killed cannot clean up after itself, so each process that it starts asks the kernel to be killed as
well: PR_SET_PDEATHSIG of prctl(2), which outlives the exec.  It acts when the *thread* that started the command ends.
Linux only; elsewhere the command runs unleashed.
"""

import ctypes
import os
import signal
import sys
from typing import Final

#: linux/prctl.h
PR_SET_PDEATHSIG: Final = 1


def command(*words: str) -> list[str]:
    """Return the command line that runs ``words`` on a leash of this process."""
    return [sys.executable, "-P", "-m", "toppgate.leash", str(os.getpid()), *words]


def main(parent: int, words: list[str]) -> None:
    """Become ``words``, unless ``parent`` is dead already.  Raises ``OSError`` where the command cannot be run."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("the process that started this one is gone")
    os.execvp(words[0], words)  # noqa: S606 - no shell, by design


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
