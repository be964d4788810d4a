"""Kernel sources: a source spec → bytes, SHA-256 and git blob id; the cache of published files (contract, section 3).

A source spec is a mapping as it stands in a params file.  ``kind`` says which other keys it has:

    release     distribution, version, member     one member of a published wheel, read by range request
    installed   distribution, version, member     a file of the installed distribution
    file        path
    git         repository, revision, path        a path at a revision of a local clone
    pick        base, donor, hunks                a cherry-pick: the base with some hunks of its diff to the donor

and, for each, ``sha256``: the pin, optional except on a pick's base.  A key whose value is None counts as absent.
"""

import __future__

import ast
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import platformdirs
import pypi_simple
import urllib3.exceptions
from remotezip import RemoteZip, RemoteZipError

from toppgate.digests import Sha256, git_blob, sha256
from toppgate.errors import SourceError
from toppgate.hunks import Hunk, diff, select, splice

Spec = Mapping[str, Any]
Plan = Callable[[int, int, int], int]

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "release": ("distribution", "version", "member"),
    "installed": ("distribution", "version", "member"),
    "file": ("path",),
    "git": ("repository", "revision", "path"),
    "pick": ("base", "donor", "hunks"),
}

_HEX: Final = "64 lower-case hex digits"
_EXPECTED: Final = {
    "sha256": _HEX,
    "tree": _HEX,
    "hunks": "a list of strings",
    "distribution": "a name",
    "version": "a version as a string",
}
_WORDS: Final = {"release": "released", "installed": "installed", "sdist": "sdist of"}

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


@dataclass(frozen=True)
class Source:
    """A kernel's text.

    Attributes
    ----------
    data, sha256, blob
        The bytes, their SHA-256, and the id that git gives them as a blob.
    spec
        The source spec that they were resolved from.
    hunks
        The hunks that a pick applied to its base; empty for every other kind.
    """

    data: bytes
    sha256: Sha256
    blob: str
    spec: Spec
    hunks: tuple[Hunk, ...] = ()


def resolve(spec: Spec, cache: Path) -> Source:
    """Return the source that ``spec`` names.

    Parameters
    ----------
    spec
        A source spec; the module's docstring says what it may hold.  A relative path starts from the working directory.
    cache
        Directory that keeps published files: ``cache()``, but for tests.

    Raises
    ------
    SourceError
        The spec is malformed, the source cannot be had, or, first word ``source_drift:`` (``patch_drift:`` for the
        result of a pick), its bytes are not the pinned ones.

    Notes
    -----
    A file that carries a pin and lies in the cache is had without network.  Without a pin nothing is checked.
    """
    spec = checked(spec, KEYS)
    match spec["kind"]:
        case "pick":
            return _pick(spec, cache)
        case "release":
            data = _release(spec, cache)
        case "installed":
            data = _installed(spec)
        case "git":
            data = _git(spec)
        case _:
            data = _file(spec, Path(spec["path"]))
    return _source(spec, data, "source_drift")


def describe(spec: Spec) -> str:
    """Return one line for a person that says what a well-formed source or host spec names; pins are not part of it."""
    match spec["kind"]:
        case "release" | "installed" | "sdist" as kind:
            member = f"{spec['member']} of " if spec.get("member") else ""
            return f"{member}{_WORDS[kind]} {spec['distribution']} {spec['version']}"
        case "file":
            return f"file {spec['path']}"
        case "git":
            return f"{spec['path']} at {spec['revision']} of {spec['repository']}"
        case "pick":
            names = ", ".join(name[:12] for name in spec["hunks"])
            return f"{describe(spec['base'])}, with hunks {names} of its diff to {describe(spec['donor'])}"
        case kind:
            raise SourceError(f"source: kind: got {kind!r}")


def checked(spec: Spec, keys: Mapping[str, tuple[str, ...]], optional: tuple[str, ...] = ("sha256",)) -> Spec:
    """Return ``spec`` without its None values, once it, base and donor included, has exactly the keys of its kind.

    Raises
    ------
    SourceError
        An unknown kind, a missing or unknown key, a value that is no non-empty string (for ``hunks`` no non-empty list
        of strings), a distribution or version that could name a path, a digest that is not 64 lower-case hex digits, or
        a base without a pin.
    """
    if not isinstance(spec, Mapping):
        raise SourceError(f"source: got {type(spec).__name__}, expected a mapping")
    spec = {key: value for key, value in spec.items() if value is not None}
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in keys:
        raise SourceError(f"source: kind: got {kind!r}, expected one of {', '.join(keys)}")
    required = {"kind", *keys[kind]}
    for key in sorted(required ^ (spec.keys() - (set(optional) - required))):
        raise SourceError(f"source of kind {kind}: {key}: {'missing' if key in required else 'unknown key'}")
    for key, value in spec.items():
        if key in ("base", "donor"):
            checked(value, keys)
        elif not _well_formed(key, value):
            raise SourceError(f"source of kind {kind}: {key}: got {value!r}, expected {_EXPECTED.get(key, 'a string')}")
    if kind == "pick" and spec["base"].get("sha256") is None:
        raise SourceError("source of kind pick: base: sha256: missing")
    return spec


def _well_formed(key: str, value: object) -> bool:
    if key == "hunks":
        return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, str) for item in value)
    if key in ("sha256", "tree"):
        return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None
    if key in ("distribution", "version"):
        return isinstance(value, str) and re.fullmatch(r"\w[\w.+!-]*", value, re.ASCII) is not None
    return isinstance(value, str) and bool(value) and "\0" not in value


def _source(spec: Spec, data: bytes, drift: str, applied: tuple[Hunk, ...] = ()) -> Source:
    """Return the source, once its bytes are the pinned ones, if any are."""
    source = Source(data, sha256(data), git_blob(data), spec, applied)
    if source.sha256 != spec.get("sha256", source.sha256):
        raise SourceError(f"{drift}: {describe(spec)}: got sha256 {source.sha256}, expected {spec['sha256']}")
    return source


def _pick(spec: Spec, cache: Path) -> Source:
    base, donor = (resolve(spec[side], cache) for side in ("base", "donor"))
    old, new = text(base.data, base.spec), text(donor.data, donor.spec)
    try:
        chosen = select(diff(old, new), spec["hunks"])
        result = splice(old, chosen)
    except SourceError as error:
        raise SourceError(f"{describe(spec)}: {error}") from error
    return _source(spec, result.encode(), "patch_drift", chosen)


def text(data: bytes, spec: Spec) -> str:
    """Return ``data`` as text, terminators as they are.  Raises ``SourceError`` when it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"{describe(spec)}: {error}, expected UTF-8") from error


def _file(spec: Spec, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{describe(spec)}: {error}") from error


def _git(spec: Spec) -> bytes:
    # A hook's GIT_DIR would name another repository; a replacement object would give other bytes than the id says.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}

    def git(*arguments: str) -> bytes:
        command = ["git", "--no-replace-objects", "-C", spec["repository"], *arguments]
        try:
            done = subprocess.run(command, capture_output=True, check=True, env=environment, timeout=60)
        except subprocess.CalledProcessError as error:
            raise SourceError(f"{describe(spec)}: git: {error.stderr.decode(errors='replace')}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SourceError(f"{describe(spec)}: git: {error}") from error
        return done.stdout

    commit = git("rev-parse", "--verify", "--end-of-options", spec["revision"] + "^{commit}").decode().strip()
    return git("cat-file", "blob", f"{commit}:{spec['path']}")


def installed(spec: Spec) -> metadata.Distribution:
    """Return the installed distribution.  Raises ``SourceError`` when it is absent or of another version."""
    try:
        found = metadata.distribution(spec["distribution"])
    except metadata.PackageNotFoundError as error:
        raise SourceError(f"{describe(spec)}: the distribution is not installed") from error
    if found.version != spec["version"]:
        raise SourceError(f"{describe(spec)}: got version {found.version}, expected {spec['version']}")
    return found


def _installed(spec: Spec) -> bytes:
    for file in installed(spec).files or ():
        if file.as_posix() == spec["member"]:
            return _file(spec, Path(str(file.locate())))
    raise SourceError(f"{describe(spec)}: no such file in the distribution")


def cache() -> Path:
    """Return the directory that keeps published files: ``TOPPGATE_CACHE``, or the user's cache directory."""
    return Path(os.environ.get("TOPPGATE_CACHE") or platformdirs.user_cache_dir("toppgate", appauthor=False))


def _release(spec: Spec, cache: Path) -> bytes:
    kept = _kept(spec, cache)
    if kept is not None:
        return kept
    with reaching(spec), index() as client:
        wheel = _wheel(spec, published(client, spec))
        with RemoteZip(wheel.url, session=client.s, timeout=TIMEOUT) as archive:
            if spec["member"] not in archive.namelist():
                raise SourceError(f"{describe(spec)}: no such member in {wheel.filename}")
            data: bytes = archive.read(spec["member"])
    with staging(cache / "members") as directory:
        (directory / "member").write_bytes(data)
        (directory / "member").replace(cache / "members" / sha256(data))
    return data


def _kept(spec: Spec, cache: Path) -> bytes | None:
    """Return the pinned bytes from the cache; a file that is not what its name says is dropped."""
    path = cache / "members" / spec.get("sha256", "")
    if not path.is_file():
        return None
    data = _file(spec, path)
    if sha256(data) == spec["sha256"]:
        return data
    with suppress(OSError):  # a cache that cannot be written is found out when the fetched file is put there
        path.unlink()
    return None


def _wheel(spec: Spec, packages: list[pypi_simple.DistributionPackage]) -> pypi_simple.DistributionPackage:
    """Return the wheel to read: the x86_64 manylinux one if there are several, the first by name if still several."""
    wheels = [package for package in packages if package.package_type == "wheel"]
    if len(wheels) > 1:
        wheels = [one for one in wheels if "manylinux" in one.filename and "x86_64" in one.filename]
    if not wheels:
        raise SourceError(f"{describe(spec)}: no wheel for x86_64 among {len(packages)} files of that version")
    return min(wheels, key=lambda one: one.filename)


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
def reaching(spec: Spec) -> Iterator[None]:
    """Turn whatever a download raises into one line that names ``spec`` and holds no credentials of a URL."""
    try:
        yield
    except _UNREACHED as error:
        reason = re.sub(r"//[^/@\s]*@", "//", str(error))
        raise SourceError(f"{describe(spec)}: not in the cache, and {type(error).__name__}: {reason}") from error


def index() -> pypi_simple.PyPISimple:
    """Return a client of the index that pip would ask: ``PIP_INDEX_URL``, pip's configuration, or the default."""
    url = os.environ.get("PIP_INDEX_URL")
    if not url:
        command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
        asked = subprocess.run(command, capture_output=True, check=False, text=True)
        url = asked.stdout.strip() if asked.returncode == 0 else ""
    return pypi_simple.PyPISimple(url or pypi_simple.PYPI_SIMPLE_ENDPOINT)


def published(client: pypi_simple.PyPISimple, spec: Spec) -> list[pypi_simple.DistributionPackage]:
    """Return the files that the index lists for the version.  Raises ``SourceError`` when there is none."""
    page = client.get_project_page(spec["distribution"], timeout=TIMEOUT)
    found = [package for package in page.packages if package.version == spec["version"]]
    if not found:
        raise SourceError(f"{describe(spec)}: the index lists no file of that version")
    return found


def function(data: bytes, name: str) -> str:
    """Return the exact text of the top-level function ``name``, decorators excluded, without importing anything.

    Raises
    ------
    SourceError
        The bytes are no Python text, or do not define ``name`` exactly once at top level.
    """
    found = _functions(data, name)
    if len(found) != 1:
        raise SourceError(f"function {name}: found {len(found)} times at top level, expected once")
    return found[0]


def _functions(data: bytes, name: str) -> list[str]:
    found = [node for node in _module(data).body if isinstance(node, ast.FunctionDef) and node.name == name]
    return [ast.get_source_segment(data.decode(), node) or "" for node in found]


def _module(data: bytes) -> ast.Module:
    try:
        return ast.parse(data.decode())
    except (SyntaxError, ValueError) as error:
        raise SourceError(f"source {sha256(data)[:12]}: not a Python text: {error}") from error


def plan(data: bytes) -> Plan | None:
    """Return a kernel text's own split plan, ``(batch, vocabulary, compute units) -> slices a row``.

    The text is not imported: its function ``_topp_split_count`` and the module's literal ``_SPLIT_*`` constants are cut
    out and run with ``min`` and ``max`` as the only built-ins.  None when the text has no such function.

    Raises
    ------
    SourceError
        The text cannot be read; or, when the plan is called, it raises or gives no positive integer.
    """
    if not _functions(data, "_topp_split_count"):
        return None
    code = function(data, "_topp_split_count")
    # Annotations stay text: their names are not in the namespace.
    flags = __future__.annotations.compiler_flag
    constants, compiled = _constants(data), compile(code, "split plan", "exec", flags=flags, dont_inherit=True)

    def slices(batch: int, vocabulary: int, compute_units: int) -> int:
        known = {"batch_size": batch, "vocab_size": vocabulary, "num_sm": compute_units}
        space: dict[str, Any] = {"__builtins__": {"min": min, "max": max}, **constants}
        try:
            exec(compiled, space)  # noqa: S102 - the pinned kernel's own function, with nothing in reach
            count = space["_topp_split_count"]
            wanted = count.__code__.co_varnames[: count.__code__.co_argcount]
            result = count(**{name: known[name] for name in wanted})
        except Exception as error:
            raise SourceError(f"split plan of source {sha256(data)[:12]}: {type(error).__name__}: {error}") from error
        if type(result) is not int or result < 1:
            raise SourceError(f"split plan of source {sha256(data)[:12]}: got {result!r}, expected a positive integer")
        return result

    return slices


def _constants(data: bytes) -> dict[str, Any]:
    """Return the module-level assignments of a literal to one name ``_SPLIT_*``."""
    constants = {}
    for node in _module(data).body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value))
            ) if name.startswith("_SPLIT_"):
                constants[name] = value
    return constants
