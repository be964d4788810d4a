"""Kernel sources: a source spec → bytes, SHA-256 and git blob id (contract, section 3).

A source spec is a mapping as it stands in a params file.  ``kind`` says which other keys it has:

    release     distribution, version, member     one member of a published wheel, read by range request
    installed   distribution, version, member     a file of the installed distribution
    file        path
    git         repository, revision, path        a path at a revision of a local clone
    pick        base, donor, hunks                a cherry-pick: the base with some hunks of its diff to the donor
    callable    callable                          a Python function ``module:function``: the text of its module's file

and, for each, ``sha256``: the pin, optional except on a pick's base.  A key whose value is None counts as absent.

A callable's module is looked for in the working directory, then on ``sys.path``; nothing is imported.  With ``of``, a
pinned spec of one of the first four kinds, it is one function, cut out of that file, whose own text is the source.
``requires`` maps distributions that it imports to the exact versions that must be installed.
"""

import __future__

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from toppgate import published
from toppgate.digests import Sha256, git_blob, sha256
from toppgate.errors import SourceError
from toppgate.hunks import Hunk, diff, select, splice
from toppgate.published import Spec

Plan = Callable[[int, int, int], int]

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "release": ("distribution", "version", "member"),
    "installed": ("distribution", "version", "member"),
    "file": ("path",),
    "git": ("repository", "revision", "path"),
    "pick": ("base", "donor", "hunks"),
    "callable": ("callable",),
}

#: Keys, beside the pin, that a spec may lack.
OPTIONAL: Final[dict[str, tuple[str, ...]]] = {"callable": ("of", "requires")}

#: Kinds that name one file, out of which a function can be cut.
FILES: Final = ("release", "installed", "file", "git")

_HEX: Final = "64 lower-case hex digits"
_EXPECTED: Final = {
    "sha256": _HEX,
    "tree": _HEX,
    "hunks": "a list of strings",
    "callable": "module:function",
    "requires": "a mapping of distributions to versions",
    "distribution": "a name",
    "version": "a version as a string",
}


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

    @property
    def callable(self) -> str | None:
        """``module:function`` of a Python function; None for a kernel file."""
        found: str | None = self.spec.get("callable")
        return found


def resolve(spec: Spec, cache: Path) -> Source:
    """Return the source that ``spec`` names.

    Parameters
    ----------
    spec
        A source spec; the module's docstring says what it may hold.  A relative path starts from the working directory.
    cache
        Directory that keeps published files: ``published.cache()``, but for tests.

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
            data = published.member(spec, cache)
        case "installed":
            data = _installed(spec)
        case "git":
            data = _git(spec)
        case "callable":
            data = _callable(spec, cache)
        case _:
            data = _file(spec, Path(spec["path"]))
    return _source(spec, data, "source_drift")


def describe(spec: Spec) -> str:
    """Return one line for a person that says what a well-formed source or host spec names; pins are not part of it."""
    match spec["kind"]:
        case "release" | "sdist":
            return published.describe(spec)
        case "installed":
            member = f"{spec['member']} of " if spec.get("member") else ""
            return f"{member}installed {spec['distribution']} {spec['version']}"
        case "file":
            return f"file {spec['path']}"
        case "git":
            return f"{spec['path']} at {spec['revision']} of {spec['repository']}"
        case "pick":
            names = ", ".join(name[:12] for name in spec["hunks"])
            return f"{describe(spec['base'])}, with hunks {names} of its diff to {describe(spec['donor'])}"
        case "callable":
            function, where = spec["callable"].rpartition(":")[2], spec.get("of")
            return f"callable {spec['callable']}" if where is None else f"function {function} of {describe(where)}"
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
    optional = (*optional, *OPTIONAL.get(kind, ()))
    for key in sorted(required ^ (spec.keys() - (set(optional) - required))):
        raise SourceError(f"source of kind {kind}: {key}: {'missing' if key in required else 'unknown key'}")
    for key, value in spec.items():
        if key in ("base", "donor", "of"):
            allowed = keys if key != "of" else {name: keys[name] for name in FILES}
            checked(value, {name: allowed[name] for name in allowed if name != "callable"})
        elif not _well_formed(key, value):
            raise SourceError(f"source of kind {kind}: {key}: got {value!r}, expected {_EXPECTED.get(key, 'a string')}")
    for key in ("base", "of"):
        if key in spec and spec[key].get("sha256") is None:
            raise SourceError(f"source of kind {kind}: {key}: sha256: missing")
    return spec


def _well_formed(key: str, value: object) -> bool:
    if key == "hunks":
        return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, str) for item in value)
    if key == "requires":
        pairs = value.items() if isinstance(value, Mapping) else ()
        return bool(pairs) and all(_well_formed("version", text) for pair in pairs for text in pair)
    if key == "callable":
        return isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value) is not None
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


def _callable(spec: Spec, cache: Path) -> bytes:
    """Return the text of a callable's module, or of the one function; its distributions are there as required."""
    for name, version in spec.get("requires", {}).items():
        installed({"kind": "installed", "distribution": name, "version": version})
    module, _, name = spec["callable"].partition(":")
    if "of" in spec:
        return function(resolve(spec["of"], cache).data, name).encode()
    data = _file(spec, _located(spec, module))
    if len(_functions(data, name)) != 1:
        raise SourceError(f"{describe(spec)}: the module defines {name} not exactly once, at top level")
    return data


def _located(spec: Spec, module: str) -> Path:
    """Return a module's file, looked for by its name alone: importing it would run it, and its packages, here."""
    stem = module.replace(".", "/")
    for root in (Path.cwd(), *map(Path, sys.path)):
        for path in (root / f"{stem}.py", root / stem / "__init__.py"):
            if path.is_file():
                return path
    raise SourceError(f"{describe(spec)}: no file {stem}.py in the working directory or on sys.path")


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
