"""Imports a package from its source text, whatever byte code lies beside it.

Only the source of a host is hashed (``host``), so only the source may run.  An empty ``PYTHONPYCACHEPREFIX`` would do
the same for every package at once, and cost a worker five seconds: torch would be compiled anew.
"""

import importlib.machinery
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the source each time; reads and writes no byte code."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the module's source as it is now."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class _Finder:
    """Finds the modules of one top-level package as Python would, and has them compiled."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module of the package, None for every other name."""
        if name.partition(".")[0] != self._package:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        elif spec is not None and isinstance(spec.loader, importlib.machinery.SourcelessFileLoader):
            raise ImportError(f"{name}: byte code without source", name=name)
        return spec


def require(package: str) -> None:
    """Have every later import of ``package`` and its modules compile the source.

    Side effect: a finder in front of ``sys.meta_path``.  Extension modules are loaded as they are.
    """
    sys.meta_path.insert(0, _Finder(package))
