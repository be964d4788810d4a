"""The host: the package directory that provides the names a kernel file imports (contract, section 3).

Two kinds of host spec, a mapping as it stands in a params file:

    sdist       distribution, version, sha256     the pure Python files of a published source distribution
    installed   distribution, version             what is installed where the worker runs

and, for each, ``tree``: the pinned digest over its Python files, optional.
"""

import os
import tarfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from toppgate import published
from toppgate.digests import Sha256, sha256, sha256_file, sha256_tree
from toppgate.errors import SourceError
from toppgate.published import Spec
from toppgate.source import checked, describe, installed

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "sdist": ("distribution", "version", "sha256"),
    "installed": ("distribution", "version"),
}

#: Extension modules that vLLM's CUDA platform imports and the kernels under test never call (contract, section 3).
STAND_INS: Final = ("_C", "_C_stable_libtorch", "_moe_C")


@dataclass(frozen=True)
class Host:
    """What provides the names that a kernel file imports.

    Attributes
    ----------
    path
        Directory to put first on the worker's ``sys.path``; None when the host is installed.
    version
        The distribution's version, which ``importlib.metadata`` also gives once ``path`` is there.
    sha256
        One digest over {relative POSIX path: SHA-256} of the Python files; stand-ins are not among them.
    stand_ins
        Dotted names of the empty modules that ``path`` holds in place of extension modules.
    root, files
        The directory that the files lie in, and {relative POSIX path: SHA-256}.
    """

    path: Path | None
    version: str
    sha256: Sha256
    stand_ins: tuple[str, ...]
    root: Path = field(repr=False)
    files: Mapping[str, Sha256] = field(repr=False)


def provide(spec: Spec, cache: Path) -> Host:
    """Return the host that ``spec`` names, every file of it hashed anew.

    Parameters
    ----------
    spec
        A host spec; the module's docstring says what it may hold.
    cache
        Directory that keeps what was downloaded: ``published.cache()``, but for tests.

    Raises
    ------
    SourceError
        The spec is malformed, the host cannot be had, the archive holds an unsafe name, or, first word
        ``source_drift:``, its bytes are not the pinned ones.

    Notes
    -----
    Byte code in ``__pycache__`` is not looked at: a worker imports the host through ``sourceonly``, which reads none of
    it.  For an installed host only the Python files are hashed, not its extension modules.
    """
    spec = checked(spec, KEYS, optional=("tree",))
    host = _sdist(spec, cache / "hosts") if spec["kind"] == "sdist" else _installed(spec)
    if host.sha256 != spec.get("tree", host.sha256):
        raise SourceError(f"source_drift: {describe(spec)}: got tree {host.sha256}, expected {spec['tree']}")
    return host


def member(host: Host, name: str) -> bytes:
    """Return the bytes of the host's Python file ``name``, a relative POSIX path.

    Raises
    ------
    SourceError
        The host has no such file, or it changed since the host was provided.
    """
    if name not in host.files:
        raise SourceError(f"host {host.version}: {name}: no such file among {len(host.files)}")
    try:
        data = (host.root / name).read_bytes()
    except OSError as error:
        raise SourceError(f"host {host.version}: {name}: {error}") from error
    if sha256(data) != host.files[name]:
        raise SourceError(
            f"source_drift: host {host.version}: {name}: got sha256 {sha256(data)}, expected {host.files[name]}"
        )
    return data


def _installed(spec: Spec) -> Host:
    found = installed(spec)
    root = Path(str(found.locate_file("")))
    listed = [file.as_posix() for file in found.files or () if file.suffix == ".py"]
    files = {name: sha256_file(root / name) for name in listed if (root / name).is_file()}
    if not files:
        raise SourceError(f"{describe(spec)}: the distribution lists no Python file that exists")
    return Host(None, found.version, sha256_tree(files), (), root, files)


def _sdist(spec: Spec, hosts: Path) -> Host:
    home = hosts / spec["sha256"]
    files = _read(spec, home)
    if files is None or sha256_tree(files) != spec.get("tree", _recorded(home)):
        _fetch(spec, home)
        files = _read(spec, home)
    if files is None:
        raise SourceError(f"{describe(spec)}: {home}: cannot be written, or changes meanwhile")
    stand_ins = tuple(f"{_package(spec)}.{name}" for name in STAND_INS)
    return Host(home / "site", spec["version"], sha256_tree(files), stand_ins, home / "site", files)


def _package(spec: Spec) -> str:
    """Return the name of the import package: this one and its distribution share their name."""
    return str(spec["distribution"]).replace("-", "_")


def _generated(spec: Spec) -> dict[str, bytes]:
    """Return what is put beside the extracted files: the dist-info that gives the version, and the stand-ins."""
    name, version = _package(spec), spec["version"]
    info = f"Metadata-Version: 2.1\nName: {spec['distribution']}\nVersion: {version}\n"
    stand_ins = {f"{name}/{module}.py": b"" for module in STAND_INS}
    return {f"{name}-{version}.dist-info/METADATA": info.encode(), **stand_ins}


def _read(spec: Spec, home: Path) -> dict[str, Sha256] | None:
    """Hash every file of an extracted host, whatever its suffix, so that a planted one counts too.

    None when there is no such host, or what was put beside its files is not as it was.
    """
    site = home / "site"
    found = {}
    for directory, names, files in os.walk(site):
        if any(Path(directory, name).is_symlink() for name in names):
            return None  # walking does not follow it, importing would
        names[:] = [name for name in names if name != "__pycache__"]
        for path in (Path(directory, name) for name in files):
            found[path.relative_to(site).as_posix()] = sha256_file(path)
    for name, data in _generated(spec).items():
        if found.pop(name, None) != sha256(data):
            return None
    return found


def _recorded(home: Path) -> str | None:
    """Return the tree digest as it was at extraction: it finds damage where no ``tree`` is pinned, no more."""
    path = home / "tree"
    return path.read_text() if path.is_file() else None


def _fetch(spec: Spec, home: Path) -> None:
    """Download the source distribution and put its Python files in place of whatever is there."""
    with published.staging(home.parent) as directory:
        archive, staged = directory / "sdist", directory / "host"
        published.sdist(spec, archive)
        if sha256_file(archive) != spec["sha256"]:
            got, expected = sha256_file(archive), spec["sha256"]
            raise SourceError(f"source_drift: {describe(spec)}: got sha256 {got}, expected {expected}")
        _extract(spec, archive, staged / "site")
        files = _read(spec, staged)
        if not files:
            raise SourceError(f"{describe(spec)}: no Python file of {_package(spec)} in the archive")
        (staged / "tree").write_text(sha256_tree(files))
        with suppress(OSError):  # another process may have been first; whatever lies there is hashed anew
            if home.exists():
                home.replace(directory / "replaced")
            staged.replace(home)


def _extract(spec: Spec, archive: Path, site: Path) -> None:
    """Extract the package's Python files only, without the archive's top directory, and add what is generated."""

    def python_only(found: tarfile.TarInfo, where: str) -> tarfile.TarInfo | None:
        path = PurePosixPath(found.name)
        if path.is_absolute() or ".." in path.parts:
            raise SourceError(f"{describe(spec)}: unsafe name {found.name!r} in the archive")
        if len(path.parts) < 3 or path.parts[1] != _package(spec) or path.suffix != ".py":
            return None
        if not found.isreg():
            raise SourceError(f"{describe(spec)}: {found.name!r} in the archive is not a regular file")
        return tarfile.data_filter(found.replace(name=str(PurePosixPath(*path.parts[1:]))), where)

    try:
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(site, filter=python_only)  # noqa: S202 - which ends in tarfile's own data filter
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise SourceError(f"{describe(spec)}: {type(error).__name__}: {error}") from error
    for name, data in _generated(spec).items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        with (site / name).open("xb") as file:
            file.write(data)
