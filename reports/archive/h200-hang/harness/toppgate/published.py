"""Published files: the index, the downloads and the cache (contract, section 3).

Two kinds of spec name a published file, a mapping as it stands in a params file:

    release     distribution, version, member     one member of a wheel; nothing else of the wheel is read
    sdist       distribution, version             a source distribution, whole
"""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import platformdirs
import pypi_simple
import urllib3.exceptions
from remotezip import RemoteZip, RemoteZipError

from toppgate.digests import sha256
from toppgate.errors import SourceError

Spec = Mapping[str, Any]

#: Seconds to connect, and seconds without a byte, after which the network counts as unreachable.
TIMEOUT: Final = (10.0, 60.0)

#: What a download can raise; requests' own errors are OSErrors, zipfile's for an encrypted member a RuntimeError.
_UNREACHED: Final = (
    OSError,
    pypi_simple.NoSuchProjectError,
    pypi_simple.UnsupportedContentTypeError,
    pypi_simple.UnsupportedRepoVersionError,
    urllib3.exceptions.HTTPError,
    RemoteZipError,
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,
    ValueError,
)


def cache() -> Path:
    """Return the directory that keeps published files: ``TOPPGATE_CACHE``, or the user's cache directory."""
    return Path(os.environ.get("TOPPGATE_CACHE") or platformdirs.user_cache_dir("toppgate", appauthor=False))


def describe(spec: Spec) -> str:
    """Return one line for a person that says what a well-formed spec names."""
    what = "sdist of" if spec["kind"] == "sdist" else f"{spec['member']} of released"
    return f"{what} {spec['distribution']} {spec['version']}"


def member(spec: Spec, cache: Path) -> bytes:
    """Return a member of a release's wheel, and keep it in the cache under its SHA-256.

    Parameters
    ----------
    spec
        A release spec; with ``sha256``, the pinned bytes are taken from the cache if they are there.
    cache
        Directory that keeps published files: ``cache()``, but for tests.

    Raises
    ------
    SourceError
        The index cannot be reached, lists no fitting wheel, or the wheel has no such member.

    Notes
    -----
    Not checked here: the pin of what was downloaded.  A range read is covered by no digest of the wheel, so the
    member's own is the one to pin.
    """
    kept = _kept(spec, cache)
    if kept is not None:
        return kept
    with _reaching(spec), index() as client:
        wheel = _wheel(spec, _listed(client, spec))
        with RemoteZip(wheel.url, session=client.s, timeout=TIMEOUT) as archive:
            if spec["member"] not in archive.namelist():
                raise SourceError(f"{describe(spec)}: no such member in {wheel.filename}")
            data: bytes = archive.read(spec["member"])
    with staging(cache / "members") as directory:
        (directory / "member").write_bytes(data)
        (directory / "member").replace(cache / "members" / sha256(data))
    return data


def sdist(spec: Spec, target: Path) -> None:
    """Download a version's source distribution to the file ``target``; its digest is not checked here.

    Raises ``SourceError`` when the index cannot be reached or lists none.
    """
    with _reaching(spec), index() as client:
        sdists = [package for package in _listed(client, spec) if package.package_type == "sdist"]
        if not sdists:
            raise SourceError(f"{describe(spec)}: the index lists no source distribution of that version")
        client.download_package(sdists[0], target, verify=False, timeout=TIMEOUT)


def index() -> pypi_simple.PyPISimple:
    """Return a client of the index that pip would ask: ``PIP_INDEX_URL``, pip's configuration, or the default."""
    url = os.environ.get("PIP_INDEX_URL")
    if not url:
        command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
        asked = subprocess.run(command, capture_output=True, check=False, text=True)
        url = asked.stdout.strip() if asked.returncode == 0 else ""
    return pypi_simple.PyPISimple(url or pypi_simple.PYPI_SIMPLE_ENDPOINT)


@contextmanager
def staging(home: Path) -> Iterator[Path]:
    """Give a fresh directory on ``home``'s own file system, from which a finished file is renamed into place."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=".partial-") as directory:
            yield Path(directory)
    except OSError as error:
        raise SourceError(f"cache {home}: {error}") from error


@contextmanager
def _reaching(spec: Spec) -> Iterator[None]:
    """Turn whatever a download raises into one line that names ``spec`` and holds no credentials of a URL."""
    try:
        yield
    except _UNREACHED as error:
        reason = re.sub(r"//[^/@\s]*@", "//", str(error))
        raise SourceError(f"{describe(spec)}: not in the cache, and {type(error).__name__}: {reason}") from error


def _listed(client: pypi_simple.PyPISimple, spec: Spec) -> list[pypi_simple.DistributionPackage]:
    """Return the files that the index lists for the version.  Raises ``SourceError`` when there is none."""
    page = client.get_project_page(spec["distribution"], timeout=TIMEOUT)
    found = [package for package in page.packages if package.version == spec["version"]]
    if not found:
        raise SourceError(f"{describe(spec)}: the index lists no file of that version")
    return found


def _wheel(spec: Spec, packages: list[pypi_simple.DistributionPackage]) -> pypi_simple.DistributionPackage:
    """Return the wheel to read: the x86_64 manylinux one if there are several, the first by name if still several."""
    wheels = [package for package in packages if package.package_type == "wheel"]
    if len(wheels) > 1:
        wheels = [one for one in wheels if "manylinux" in one.filename and "x86_64" in one.filename]
    if not wheels:
        raise SourceError(f"{describe(spec)}: no wheel for x86_64 among {len(packages)} files of that version")
    return min(wheels, key=lambda one: one.filename)


def _kept(spec: Spec, cache: Path) -> bytes | None:
    """Return the pinned bytes from the cache; a file that is not what its name says is dropped."""
    path = cache / "members" / spec.get("sha256", "")
    if not path.is_file():
        return None
    try:
        data: bytes = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{describe(spec)}: {error}") from error
    if sha256(data) == spec["sha256"]:
        return data
    with suppress(OSError):  # a cache that cannot be written is found out when the fetched file is put there
        path.unlink()
    return None
