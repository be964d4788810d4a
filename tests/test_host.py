"""The host: the real release's Python files, and what becomes of damaged, drifted and hostile ones.

The pinned facts come from the real index (or the cache: 43 MB, once); everything that goes wrong is tested on small
archives served by an index on this machine.
"""

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from test_source import Index, failure, serving, unreachable

from toppgate import host, published, source
from toppgate.digests import sha256, sha256_tree

#: SHA-256 of vLLM 0.31.0's source distribution, and the digest over its Python files.
SDIST = "dde46f1efbe846e5bd0c5c4ec6ec71842c42254c7ff3d9bebb2a57028715d380"
TREE = "75597a989e65334611b30264c4074a3c93c8407b2615ac72029a49d5b90b3b39"
REAL = {"kind": "sdist", "distribution": "vllm", "version": "0.31.0", "sha256": SDIST, "tree": TREE}
SORT = "vllm/v1/sample/ops/topk_topp_sampler.py"
KERNEL = "vllm/v1/sample/ops/topk_topp_triton.py"
KERNEL_SHA256 = "c19c0af6a55c72dcb845ca531586faacc987711fc7bf3c5288cc498f923752f4"

FILES = {"thing/__init__.py": b"from thing import a\n", "thing/a.py": b"import thing._C\nx = 1\n"}
STAND_INS = ("thing._C", "thing._C_stable_libtorch", "thing._moe_C")
WRONG = "0" * 64


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    """Return an archive member of that kind."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def sdist(*extra: tarfile.TarInfo, files: dict[str, bytes] = FILES) -> bytes:
    """Return a source distribution of the files, other things that a host does not need, and empty extra members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in {**files, "setup.py": b"raise", "thing/data.json": b"{}", "tests/a.py": b"raise"}.items():
            info = entry(f"thing-1.0/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for info in extra:
            tar.addfile(info)
    return buffer.getvalue()


def publish(index: Index, archive: bytes) -> dict[str, Any]:
    """Put the archive on the index, and return its host spec."""
    index.files["thing-1.0.tar.gz"] = archive
    return {"kind": "sdist", "distribution": "thing", "version": "1.0", "sha256": sha256(archive)}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Serve an index that is empty at first."""
    with serving({}, monkeypatch) as index:
        yield index


# ------------------------------------------------------------------------------------------------- the real release


def test_release_is_the_pinned_one() -> None:
    """The 2,570 Python files of vLLM 0.31.0 have the pinned tree digest, and the kernel among them is the wheel's."""
    found = host.provide(REAL, published.cache())
    assert (found.version, found.sha256, len(found.files)) == ("0.31.0", TREE, 2570)
    assert sha256(host.member(found, KERNEL)) == KERNEL_SHA256
    assert found.stand_ins == ("vllm._C", "vllm._C_stable_libtorch", "vllm._moe_C")


@pytest.mark.slow
def test_release_imports_and_sorts() -> None:
    """Kernel and stand-ins import from the host on a CPU; the sort reference, cut out, runs with torch alone."""
    found = host.provide(REAL, published.cache())
    text = source.function(host.member(found, SORT), "apply_top_k_top_p_pytorch")
    code = f"""
import importlib, importlib.metadata, sys, torch
assert not any(name.startswith("vllm") for name in sys.modules)
space = {{"torch": torch}}
exec({text!r}, space)
kept = space["apply_top_k_top_p_pytorch"](torch.tensor([[0.0, 3.0, 2.0]]), None, torch.tensor([0.9])) > -1
assert kept.tolist() == [[False, True, True]], kept
sys.path.insert(0, {str(found.path)!r})
for name in ("vllm.v1.sample.ops.topk_topp_triton", *{found.stand_ins!r}):
    assert importlib.import_module(name).__file__.startswith({str(found.path)!r})
assert importlib.metadata.version("vllm") == "0.31.0"
"""
    settings = {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **settings}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------------------------------------- what is kept


def test_only_python_files_of_the_package_are_kept(index: Index, tmp_path: Path) -> None:
    """The host holds the package's Python files, a dist-info and empty stand-ins: nothing else of the archive."""
    found = host.provide(publish(index, sdist()), tmp_path)
    assert found.path is not None
    there = {path.relative_to(found.path).as_posix() for path in found.path.rglob("*") if path.is_file()}
    generated = {f"{name.replace('.', '/')}.py" for name in STAND_INS}
    assert there == {*FILES, *generated, "thing-1.0.dist-info/METADATA"}
    assert found.stand_ins == STAND_INS
    assert all((found.path / name).read_bytes() == b"" for name in generated)
    assert found.sha256 == sha256_tree({name: sha256(data) for name, data in FILES.items()})
    assert [host.member(found, name) for name in FILES] == list(FILES.values())
    assert not [path for path in (tmp_path / "hosts").iterdir() if path.name != sha256(sdist())]


def test_provided_host_is_importable(index: Index, tmp_path: Path) -> None:
    """With the host's path first, the package, a stand-in and the version are found."""
    found = host.provide(publish(index, sdist()), tmp_path)
    code = "import importlib.metadata as m, thing; print(thing.__file__, thing.a.x, m.version('thing'))"
    environment = {"PYTHONPATH": str(found.path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == f"{found.path}/thing/__init__.py 1 1.0\n"


@pytest.mark.parametrize("pinned", [True, False], ids=["tree pinned", "tree recorded"])
def test_provided_once_needs_no_network(
    pinned: bool, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive is downloaded once; byte code that an import left behind changes nothing."""
    spec = publish(index, sdist())
    first = host.provide(spec, tmp_path)
    assert first.path is not None
    (first.path / "thing/__pycache__").mkdir()
    (first.path / "thing/__pycache__/a.cpython-311.pyc").write_bytes(b"")
    unreachable(monkeypatch)
    assert host.provide({**spec, "tree": first.sha256} if pinned else spec, tmp_path) == first


def _change(site: Path) -> None:
    (site / "thing/a.py").write_bytes(b"x = 2\n")


def _remove(site: Path) -> None:
    (site / "thing/a.py").unlink()


def _plant_module(site: Path) -> None:
    (site / "thing/b.py").write_bytes(b"")


def _plant_extension(site: Path) -> None:
    (site / "thing/a.abi3.so").write_bytes(b"")


def _plant_link(site: Path) -> None:
    (site / "torch").symlink_to(site / "thing")


def _fill_stand_in(site: Path) -> None:
    (site / "thing/_C.py").write_bytes(b"x = 1\n")


def _change_version(site: Path) -> None:
    (site / "thing-1.0.dist-info/METADATA").write_bytes(b"Name: thing\nVersion: 2.0\n")


def _remove_all(site: Path) -> None:
    site.rename(site.with_name("elsewhere"))


@pytest.mark.parametrize("pinned", [True, False], ids=["tree pinned", "tree recorded"])
@pytest.mark.parametrize(
    "damage",
    [
        _change,
        _remove,
        _plant_module,
        _plant_extension,
        _plant_link,
        _fill_stand_in,
        _change_version,
        _remove_all,
    ],
)
def test_damaged_host_is_extracted_again(damage: Any, pinned: bool, index: Index, tmp_path: Path) -> None:
    """A file that was changed, removed or planted is found on the next use, and the whole host is replaced."""
    spec = publish(index, sdist())
    good = host.provide(spec, tmp_path)
    assert good.path is not None
    before = {path: path.is_file() and path.read_bytes() for path in good.path.rglob("*")}
    damage(good.path)
    downloads = len(index.requests)
    assert host.provide({**spec, "tree": good.sha256} if pinned else spec, tmp_path) == good
    assert len(index.requests) > downloads
    assert {path: path.is_file() and path.read_bytes() for path in good.path.rglob("*")} == before


def test_damaged_host_without_network(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged host is never handed out: without the index it is one line."""
    spec = publish(index, sdist())
    good = host.provide(spec, tmp_path)
    assert good.path is not None
    _change(good.path)
    unreachable(monkeypatch)
    message = failure(lambda: host.provide(spec, tmp_path))
    assert message.startswith("sdist of thing 1.0: not in the cache, and ConnectionError: ")


def test_a_forged_record_does_not_help_against_a_pin(index: Index, tmp_path: Path) -> None:
    """Who changes a file and the digest recorded beside it is still found out by the pinned tree."""
    spec = publish(index, sdist())
    good = host.provide(spec, tmp_path)
    assert good.path is not None
    _change(good.path)
    forged = sha256_tree({**good.files, "thing/a.py": sha256(b"x = 2\n")})
    (good.path.parent / "tree").write_text(forged)
    assert host.provide({**spec, "tree": good.sha256}, tmp_path) == good


# -------------------------------------------------------------------------------------------------- what is refused


def test_drift(index: Index, tmp_path: Path) -> None:
    """An archive, or a tree, that is not the pinned one is source_drift, with both digests."""
    spec = publish(index, sdist())
    message = failure(lambda: host.provide({**spec, "sha256": WRONG}, tmp_path))
    assert message == f"source_drift: sdist of thing 1.0: got sha256 {spec['sha256']}, expected {WRONG}"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    tree = host.provide(spec, tmp_path).sha256
    message = failure(lambda: host.provide({**spec, "tree": WRONG}, tmp_path))
    assert message == f"source_drift: sdist of thing 1.0: got tree {tree}, expected {WRONG}"


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (entry("../evil.py"), "unsafe name '../evil.py'"),
        (entry("thing-1.0/thing/../../../evil.py"), "unsafe name"),
        (entry("thing-1.0/docs/../../evil.txt"), "unsafe name"),
        (entry("/thing-1.0/thing/evil.py"), "unsafe name '/thing-1.0/thing/evil.py'"),
        (entry("thing-1.0/thing/evil.py", tarfile.SYMTYPE, "/etc/passwd"), "is not a regular file"),
        (entry("thing-1.0/thing/evil.py", tarfile.SYMTYPE, "a.py"), "is not a regular file"),
        (entry("thing-1.0/thing/evil.py", tarfile.LNKTYPE, "thing-1.0/setup.py"), "is not a regular file"),
        (entry("thing-1.0/thing/evil.py", tarfile.FIFOTYPE), "is not a regular file"),
        (entry("thing-1.0/thing/_C.py"), "File exists"),
    ],
    ids=lambda value: f"{value.name} {value.linkname}" if isinstance(value, tarfile.TarInfo) else "",
)
def test_hostile_members(member: tarfile.TarInfo, message: str, index: Index, tmp_path: Path) -> None:
    """An archive with a name that leads outside, a link, a device or a stand-in's name leaves nothing behind."""
    spec = publish(index, sdist(member))
    assert message in failure(lambda: host.provide(spec, tmp_path / "cache"))
    assert not [path for path in tmp_path.rglob("*") if not path.is_dir()]


def test_linked_directory_is_not_followed(index: Index, tmp_path: Path) -> None:
    """A link to a directory is not extracted, so a file "inside" it lands inside the host."""
    link = entry("thing-1.0/thing/out", tarfile.SYMTYPE, str(tmp_path))
    found = host.provide(publish(index, sdist(link, entry("thing-1.0/thing/out/evil.py"))), tmp_path / "cache")
    assert set(found.files) == {*FILES, "thing/out/evil.py"}
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


@pytest.mark.parametrize(
    ("archive", "message"),
    [(b"", "ReadError"), (sdist()[:-20], "EOFError"), (b"\x1f\x8b" + bytes(50), "ReadError")],
)
def test_damaged_archive(archive: bytes, message: str, index: Index, tmp_path: Path) -> None:
    """An archive that cannot be read to its end gives one line and no host."""
    spec = publish(index, archive)
    assert f"sdist of thing 1.0: {message}" in failure(lambda: host.provide(spec, tmp_path))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_archive_without_the_package(index: Index, tmp_path: Path) -> None:
    """An archive in which nothing lies where the package should is refused rather than provided empty."""
    spec = publish(index, sdist(files={}))
    assert "no Python file of thing" in failure(lambda: host.provide(spec, tmp_path))


def test_no_sdist_of_that_version(index: Index, tmp_path: Path) -> None:
    """A version that is published without a source distribution, and one that is not published, are named."""
    spec = {"kind": "sdist", "distribution": "thing", "version": "1.0", "sha256": WRONG}
    index.files["thing-1.0-py3-none-any.whl"] = b""
    assert "lists no source distribution" in failure(lambda: host.provide(spec, tmp_path))
    assert "lists no file of that version" in failure(lambda: host.provide({**spec, "version": "2.0"}, tmp_path))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "release"}, "source: kind: got 'release', expected one of sdist, installed"),
        ({"kind": "sdist", "distribution": "thing", "version": "1.0"}, "source of kind sdist: sha256: missing"),
        ({**REAL, "tree": "75597a"}, "source of kind sdist: tree: got '75597a'"),
        ({"kind": "installed", "distribution": "thing"}, "source of kind installed: version: missing"),
        ({**REAL, "version": "../0.31.0"}, "source of kind sdist: version: got '../0.31.0'"),
        ({**REAL, "distribution": "a/b"}, "source of kind sdist: distribution: got 'a/b'"),
    ],
)
def test_malformed_specs(spec: dict[str, Any], message: str, tmp_path: Path) -> None:
    """A host spec is refused before anything is read, and the key at fault is named."""
    assert failure(lambda: host.provide(spec, tmp_path)).startswith(message)


# ------------------------------------------------------------------------------------------------------- installed


INSTALLED = {"kind": "installed", "distribution": "rfc8785", "version": metadata.version("rfc8785")}


def test_installed(tmp_path: Path) -> None:
    """An installed host needs no path and no stand-ins; its digest is over the Python files that its RECORD lists."""
    import rfc8785

    root = Path(rfc8785.__file__).parent.parent
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.glob("rfc8785/**/*.py")}
    found = host.provide(INSTALLED, tmp_path)
    assert (found.path, found.version, found.stand_ins) == (None, INSTALLED["version"], ())
    assert found.sha256 == sha256_tree({name: sha256(data) for name, data in files.items()})
    assert host.member(found, "rfc8785/__init__.py") == files["rfc8785/__init__.py"]
    assert host.provide({**INSTALLED, "tree": found.sha256}, tmp_path) == found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "0.0.1"}, f"installed rfc8785 0.0.1: got version {INSTALLED['version']}, expected 0.0.1"),
        ({"distribution": "no-such-distribution"}, "installed no-such-distribution"),
        ({"tree": WRONG}, "source_drift: installed rfc8785"),
    ],
)
def test_installed_refuses(change: dict[str, str], message: str, tmp_path: Path) -> None:
    """Another version, an absent distribution and a drifted tree are refused."""
    assert failure(lambda: host.provide({**INSTALLED, **change}, tmp_path)).startswith(message)


def test_installed_without_python_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that lists no Python file, such as an editable one, has no digest and is refused."""
    info = tmp_path / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (info / "RECORD").write_text("thing.pth,,\nthing/gone.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = {"kind": "installed", "distribution": "thing", "version": "1.0"}
    assert "lists no Python file that exists" in failure(lambda: host.provide(spec, tmp_path))


# ---------------------------------------------------------------------------------------------------------- member


@pytest.mark.parametrize("name", ["thing/b.py", "thing/../thing/a.py", "/etc/passwd", "thing/_C.py", ""])
def test_member_is_one_of_the_files(name: str, index: Index, tmp_path: Path) -> None:
    """Only a file that the host's digest covers can be read, by its one name."""
    found = host.provide(publish(index, sdist()), tmp_path)
    assert "no such file among 2" in failure(lambda: host.member(found, name))


def test_member_that_changed(index: Index, tmp_path: Path) -> None:
    """A file that changed, or went, after the host was provided is not returned."""
    found = host.provide(publish(index, sdist()), tmp_path)
    assert found.path is not None
    _change(found.path)
    assert failure(lambda: host.member(found, "thing/a.py")).startswith("source_drift: host 1.0: thing/a.py: got ")
    _remove(found.path)
    assert failure(lambda: host.member(found, "thing/a.py")).startswith("host 1.0: thing/a.py: ")
