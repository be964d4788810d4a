"""``python -m toppgate``."""

from toppgate.cli import main

main()
