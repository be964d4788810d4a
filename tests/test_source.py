"""Kernel sources: pinned facts of the published wheels, every kind of spec, the cache, and each way to fail.

The facts come from the real index (or the cache).  How a download goes right or wrong is tested against an index on
this machine, which counts what it serves.
"""

import io
import json
import os
import re
import socket
import subprocess
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pypi_simple
import pytest

from toppgate import published, source
from toppgate.digests import sha256
from toppgate.errors import SourceError
from toppgate.hunks import diff, digest

KERNEL = "vllm/v1/sample/ops/topk_topp_triton.py"
#: SHA-256 of the member (contract, section 3).
RELEASES = {
    "0.30.0": "0b5fc337058e22bc28a8530ccec904d6ccd89b9548b02955c657ac429b1669d2",
    "0.31.0": "c19c0af6a55c72dcb845ca531586faacc987711fc7bf3c5288cc498f923752f4",
    "0.32.0": "d39388245d5d5f54dfdd11ef9285d45b5029054167cfddb6b86961d07d562712",
    "0.33.0": "6264a524884274824b65c3a3a91d4d34418561cde566c31879cb394acd85f2ef",
}
PATCH = "5b64e1f938c1f5a106a12c7eb30d51e2e1045ead277f5933c0800f761e43c2ae"
PATCH_BLOB = "d3e38fc6c3b4626ce0ac7852599e545adf90497e"
PATCH_HUNKS = ["31905c87d2b0", "2966b59403f6", "b62514e7f14e"]
OMITTED_HUNK = "9ec9248e3a1f"
WRONG = "0" * 64


def release(version: str, **more: Any) -> dict[str, Any]:
    """Return the spec of the kernel in a release, with its pin."""
    return {
        "kind": "release",
        "distribution": "vllm",
        "version": version,
        "member": KERNEL,
        "sha256": RELEASES[version],
        **more,
    }


def pick(hunks: list[str], **more: Any) -> dict[str, Any]:
    """Return the spec of the patch, rebuilt from two releases."""
    return {"kind": "pick", "base": release("0.31.0"), "donor": release("0.33.0"), "hunks": hunks, **more}


def failure(call: Callable[[], object]) -> str:
    """Return the message of the SourceError that ``call`` raises: one line."""
    with pytest.raises(SourceError) as caught:
        call()
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


# ------------------------------------------------------------------------------------------ an index on this machine


@dataclass
class Index:
    """A package index: what it holds by file name, which requests came in, and how many bytes went out."""

    url: str
    files: dict[str, bytes]
    requests: list[str] = field(default_factory=list)
    sent: int = 0

    def page(self, project: str) -> bytes:
        """Return a project's page: every file whose name begins with the project's."""
        names = [name for name in self.files if name.lower().startswith(f"{project}-")]
        return "".join(f'<a href="/files/{name}">{name}</a>\n' for name in names).encode()


def _handler(index: Index) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.requests.append(self.path)
            _, area, name, *_ = self.path.split("/")
            body = index.files.get(name) if area == "files" else index.page(name) or None
            if body is None:
                self.send_error(404)
                return
            asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            self.send_response(206 if asked else 200)
            if asked:
                first, last = asked.groups()
                start = int(first) if first else max(0, len(body) - int(last))
                stop = min(len(body), int(last) + 1 if first and last else len(body))
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(body)}")
                body = body[start:stop]
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "text/html" if area == "simple" else "application/octet-stream")
            self.end_headers()
            self.wfile.write(body)
            index.sent += len(body)

        def log_message(self, *_: object) -> None: ...

    return Handler


@contextmanager
def serving(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Serve an index with these files, and make it the one that pip would ask."""
    index = Index("", files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(index))
    index.url = f"http://127.0.0.1:{server.server_port}/simple/"
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the index a port of this machine at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free.getsockname()[1]}/simple/")


DATA = "x = 1\r\n\x0c# é\n".encode()
MEMBER = {"kind": "release", "distribution": "thing", "version": "1.0", "member": "thing/a.py"}
PINNED = {**MEMBER, "sha256": sha256(DATA)}


def wheel(members: dict[str, bytes]) -> bytes:
    """Return a wheel that stores these members uncompressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Serve one version of one project: a wheel whose other member is 4 MiB."""
    members = {"thing/binary.so": bytes(1 << 22), "thing/a.py": DATA, "thing/b.py": b"other"}
    with serving({"thing-1.0-py3-none-any.whl": wheel(members)}, monkeypatch) as index:
        yield index


# ------------------------------------------------------------------------------------------------ facts of the wheels


@pytest.mark.parametrize("version", RELEASES)
def test_published_members_are_the_pinned_ones(version: str) -> None:
    """The kernel's bytes in each published wheel have the digest that the contract states."""
    found = source.resolve(release(version), published.cache())
    assert sha256(found.data) == found.sha256 == RELEASES[version]


def test_commit_is_rebuilt_from_two_wheels() -> None:
    """0.31.0 with three hunks of its diff to 0.33.0 is the commit's file: SHA-256, git blob id and length."""
    found = source.resolve(pick(PATCH_HUNKS, sha256=PATCH), published.cache())
    assert (found.sha256, found.blob, len(found.data.decode())) == (PATCH, PATCH_BLOB, 70745)
    assert [hunk.sha256[:12] for hunk in found.hunks] == PATCH_HUNKS


def test_stock_to_patch_is_the_chosen_hunks() -> None:
    """The diff from the base to the result is what was chosen, so one digest names the patch either way."""
    base = source.resolve(release("0.31.0"), published.cache())
    patch = source.resolve(pick(PATCH_HUNKS, sha256=PATCH), published.cache())
    assert digest(diff(base.data.decode(), patch.data.decode())) == digest(patch.hunks)
    donor = source.resolve(release("0.33.0"), published.cache())
    assert len(diff(base.data.decode(), donor.data.decode())) == 16


@pytest.mark.parametrize("hunks", [[*PATCH_HUNKS, OMITTED_HUNK], PATCH_HUNKS[:2]], ids=["one more", "one less"])
def test_other_hunks_are_another_patch(hunks: list[str]) -> None:
    """With one hunk more, or less, the result is not the commit's file: patch_drift, with both digests."""
    got = source.resolve(pick(hunks), published.cache()).sha256
    message = failure(lambda: source.resolve(pick(hunks, sha256=PATCH), published.cache()))
    assert message.startswith("patch_drift: ")
    assert message.endswith(f": got sha256 {got}, expected {PATCH}")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (release("0.31.0"), [2, 2, 2, 1, 32, 2]),
        (pick(PATCH_HUNKS, sha256=PATCH), [2, 2, 2, 1, 32, 2]),
        (release("0.33.0"), [2, 4, 16, 4, 32, 4]),
    ],
    ids=["0.31.0", "0a1276e", "0.33.0"],
)
def test_split_plan(spec: dict[str, Any], expected: list[int]) -> None:
    """Each text's own plan: by batch and compute units up to the commit; in 0.33.0 by the vocabulary as well."""
    plan = source.plan(source.resolve(spec, published.cache()).data)
    assert plan is not None
    calls = [(8, 1000, 16), (8, 49152, 16), (8, 128256, 16), (64, 32000, 8), (1, 32000, 132), (64, 32000, 132)]
    assert [plan(*call) for call in calls] == expected


# -------------------------------------------------------------------------------------------------------- kinds


def test_file(tmp_path: Path) -> None:
    """A file's bytes are taken as they are, terminators included; its blob id is git's."""
    path = tmp_path / "a.py"
    path.write_bytes(DATA)
    found = source.resolve({"kind": "file", "path": str(path)}, tmp_path)
    blob = subprocess.run(["git", "hash-object", "--no-filters", path], capture_output=True, text=True, check=True)
    assert (found.data, found.sha256, found.blob) == (DATA, sha256(DATA), blob.stdout.strip())
    assert found.hunks == ()


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    assert "nowhere.py" in failure(lambda: source.resolve({"kind": "file", "path": "nowhere.py"}, tmp_path))


RFC8785 = {"kind": "installed", "distribution": "rfc8785", "version": metadata.version("rfc8785")}


def test_installed(tmp_path: Path) -> None:
    """A file of an installed distribution is the file that is imported."""
    import rfc8785

    found = source.resolve({**RFC8785, "member": "rfc8785/__init__.py"}, tmp_path)
    assert found.data == Path(rfc8785.__file__).read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "0.0.1"}, f"got version {RFC8785['version']}, expected 0.0.1"),
        ({"distribution": "no-such-distribution"}, "not installed"),
        ({"member": "rfc8785/../rfc8785/__init__.py"}, "no such file in the distribution"),
    ],
)
def test_installed_refuses(change: dict[str, str], message: str, tmp_path: Path) -> None:
    """Another version, an absent distribution and a file that it does not list are refused."""
    spec = {**RFC8785, "member": "rfc8785/__init__.py", **change}
    assert message in failure(lambda: source.resolve(spec, tmp_path))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Make a clone of a repository whose file changed since the tagged revision, and is dirty now."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false", "-C", str(origin)]
    subprocess.run(["git", "init", "-q", str(origin)], check=True)
    for data in (DATA, b"changed\n"):
        (origin / "a.py").write_bytes(data)
        subprocess.run([*git, "add", "a.py"], check=True)
        subprocess.run([*git, "commit", "-qm", "change"], check=True)
    subprocess.run([*git, "tag", "old", "HEAD~1"], check=True)
    subprocess.run(["git", "clone", "-q", str(origin), str(clone)], check=True)
    (clone / "a.py").write_bytes(b"dirty\n")
    return clone


def test_git(clone: Path, tmp_path: Path) -> None:
    """A path at a revision is the committed blob, whatever the working tree holds."""
    spec = {"kind": "git", "repository": str(clone), "path": "a.py"}
    found = source.resolve({**spec, "revision": "old"}, tmp_path)
    assert (found.data, found.blob) == (DATA, source.resolve({**spec, "revision": "HEAD~1"}, tmp_path).blob)
    assert source.resolve({**spec, "revision": "HEAD"}, tmp_path).data == b"changed\n"


def test_git_is_not_misled(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a hook's GIT_DIR nor a replacement object gives other bytes."""
    blobs = [
        subprocess.run(["git", "-C", clone, "rev-parse", f"{rev}:a.py"], capture_output=True, text=True, check=True)
        for rev in ("old", "HEAD")
    ]
    subprocess.run(["git", "-C", clone, "replace", *(blob.stdout.strip() for blob in blobs)], check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    spec = {"kind": "git", "repository": str(clone), "path": "a.py", "revision": "old"}
    assert source.resolve(spec, tmp_path).data == DATA


@pytest.mark.parametrize(
    "change",
    [
        {"revision": "no-such"},
        {"revision": "--all"},
        {"revision": "HEAD^{tree}"},
        {"path": "b.py"},
        {"repository": "/no"},
    ],
    ids=str,
)
def test_git_refuses(change: dict[str, str], clone: Path, tmp_path: Path) -> None:
    """A revision that is no commit, an option in its place, a missing path and a missing clone are refused."""
    spec = {"kind": "git", "repository": str(clone), "revision": "HEAD", "path": "a.py", **change}
    message = failure(lambda: source.resolve(spec, tmp_path))
    assert message.startswith(f"{spec['path']} at {spec['revision']} of {spec['repository']}: git: ")


def test_pick_of_files(tmp_path: Path) -> None:
    """A pick takes any kind of base and donor, another pick included, and nests."""
    texts = {"base": "a\nb\nc\n", "donor": "A\nb\nC\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    first, second = (hunk.sha256 for hunk in diff(texts["base"], texts["donor"]))
    file = {"kind": "file", "path": str(tmp_path / "base"), "sha256": sha256(b"a\nb\nc\n")}
    donor = {"kind": "file", "path": str(tmp_path / "donor")}
    inner = {"kind": "pick", "base": file, "donor": donor, "hunks": [first], "sha256": sha256(b"A\nb\nc\n")}
    assert source.resolve(inner, tmp_path).data == b"A\nb\nc\n"
    outer = {"kind": "pick", "base": inner, "donor": donor, "hunks": [second]}
    assert source.resolve(outer, tmp_path).data == b"A\nb\nC\n"


def test_pick_of_no_text(tmp_path: Path) -> None:
    """A base that is not UTF-8 has no lines to splice."""
    (tmp_path / "base").write_bytes(b"\xff\n")
    file = {"kind": "file", "path": str(tmp_path / "base"), "sha256": sha256(b"\xff\n")}
    spec = {"kind": "pick", "base": file, "donor": file, "hunks": [WRONG]}
    assert "expected UTF-8" in failure(lambda: source.resolve(spec, tmp_path))


def test_pick_names_an_unknown_hunk(tmp_path: Path) -> None:
    """A hunk that the diff does not have is named, with the pick."""
    message = failure(lambda: source.resolve(pick(["0123456789ab"]), published.cache()))
    assert message == (
        f"{source.describe(pick(['0123456789ab']))}: hunk 0123456789ab: found 0 times among 16 hunks, expected once"
    )
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------------ pins and specs


def test_drift_of_every_kind(clone: Path, tmp_path: Path, index: Index) -> None:
    """A pin that is not met is source_drift, with both digests, whatever the kind."""
    assert index.url
    (tmp_path / "a.py").write_bytes(DATA)
    for spec in (
        MEMBER,
        {**RFC8785, "member": "rfc8785/__init__.py"},
        {"kind": "file", "path": str(tmp_path / "a.py")},
        {"kind": "git", "repository": str(clone), "revision": "old", "path": "a.py"},
    ):
        got = source.resolve(spec, tmp_path).sha256
        message = failure(lambda spec=spec: source.resolve({**spec, "sha256": WRONG}, tmp_path))  # type: ignore[misc]
        assert message == f"source_drift: {source.describe(spec)}: got sha256 {got}, expected {WRONG}"


@pytest.mark.parametrize("side", ["base", "donor"])
def test_drift_of_a_picks_sides(side: str, tmp_path: Path) -> None:
    """A base or donor that drifted is found before the splice, and is source_drift, not patch_drift."""
    (tmp_path / "a").write_text("a\n")
    (tmp_path / "b").write_text("b\n")
    spec: dict[str, Any] = {
        "kind": "pick",
        "base": {"kind": "file", "path": str(tmp_path / "a"), "sha256": sha256(b"a\n")},
        "donor": {"kind": "file", "path": str(tmp_path / "b"), "sha256": sha256(b"b\n")},
        "hunks": [diff("a\n", "b\n")[0].sha256],
        "sha256": sha256(b"b\n"),
    }
    assert source.resolve(spec, tmp_path).data == b"b\n"
    spec[side]["sha256"] = WRONG
    assert failure(lambda: source.resolve(spec, tmp_path)).startswith("source_drift: file ")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "source: kind: got None, expected one of release, installed, file, git, pick"),
        ({"kind": "url", "path": "a"}, "source: kind: got 'url', expected one of"),
        ({"kind": ["file"]}, "source: kind: got ['file']"),
        ("file", "source: got str, expected a mapping"),
        ({"kind": "file"}, "source of kind file: path: missing"),
        ({"kind": "file", "path": None}, "source of kind file: path: missing"),
        ({"kind": "file", "path": "a", "sha265": WRONG}, "source of kind file: sha265: unknown key"),
        ({"kind": "file", "path": "a", "tree": WRONG}, "source of kind file: tree: unknown key"),
        ({"kind": "file", "path": ""}, "source of kind file: path: got '', expected a string"),
        ({"kind": "file", "path": "a\0"}, "source of kind file: path: got"),
        ({"kind": "file", "path": "a", "sha256": WRONG[1:]}, "source of kind file: sha256: got '000"),
        (
            {"kind": "file", "path": "a", "sha256": "A" * 64},
            f"source of kind file: sha256: got '{'A' * 64}', expected 64 lower-case hex digits",
        ),
        ({**MEMBER, "version": 0.31}, "source of kind release: version: got 0.31, expected a version as a string"),
        (pick([]), "source of kind pick: hunks: got [], expected a list of strings"),
        (pick("31905c87d2b0"), "source of kind pick: hunks: got '31905c87d2b0'"),  # type: ignore[arg-type]
        (pick(PATCH_HUNKS, base=release("0.31.0", sha256=None)), "source of kind pick: base: sha256: missing"),
        (pick(PATCH_HUNKS, base={"kind": "file"}), "source of kind file: path: missing"),
        (pick(PATCH_HUNKS, donor="0.33.0"), "source: got str, expected a mapping"),
        (pick(PATCH_HUNKS, donor=pick([])), "source of kind pick: hunks: got []"),
    ],
)
def test_malformed_specs(spec: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spec is refused as a whole before anything is read, and the key at fault is named."""
    unreachable(monkeypatch)
    assert failure(lambda: source.resolve(spec, tmp_path)).startswith(message)


def test_describe() -> None:
    """Every kind of spec has one plain line."""
    assert source.describe(release("0.31.0")) == f"{KERNEL} of released vllm 0.31.0"
    assert source.describe({**RFC8785, "member": "a.py"}) == f"a.py of installed rfc8785 {RFC8785['version']}"
    assert source.describe({"kind": "file", "path": "a.py"}) == "file a.py"
    assert source.describe({"kind": "git", "repository": "r", "revision": "v", "path": "a.py"}) == "a.py at v of r"
    assert source.describe(pick(PATCH_HUNKS)) == (
        f"{KERNEL} of released vllm 0.31.0, with hunks 31905c87d2b0, 2966b59403f6, b62514e7f14e "
        f"of its diff to {KERNEL} of released vllm 0.33.0"
    )


# ---------------------------------------------------------------------------------------------- download and cache


def test_only_the_member_is_downloaded(index: Index, tmp_path: Path) -> None:
    """Of a 4 MiB wheel, less than 100 kB is read: its directory and the member."""
    assert source.resolve(MEMBER, tmp_path).data == DATA
    assert index.sent < 100_000


def test_pinned_and_cached_needs_no_network(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read once, even without a pin, is had again by its pin with the index out of reach."""
    assert index.url
    source.resolve(MEMBER, tmp_path)
    unreachable(monkeypatch)
    assert source.resolve(PINNED, tmp_path).data == DATA
    assert [path.name for path in (tmp_path / "members").iterdir()] == [sha256(DATA)]


def test_unpinned_is_asked_for_again(index: Index, tmp_path: Path) -> None:
    """Without a pin there is nothing to find in the cache: the index is asked each time."""
    source.resolve(MEMBER, tmp_path)
    asked = len(index.requests)
    source.resolve(MEMBER, tmp_path)
    assert len(index.requests) == 2 * asked


def test_damaged_cache_is_fetched_again(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache file that is not what its name says is never returned: it is dropped, and fetched again."""
    source.resolve(PINNED, tmp_path)
    kept = tmp_path / "members" / sha256(DATA)
    kept.write_bytes(DATA + b"#")
    assert source.resolve(PINNED, tmp_path).data == DATA
    assert kept.read_bytes() == DATA
    kept.write_bytes(b"")
    unreachable(monkeypatch)
    assert "not in the cache" in failure(lambda: source.resolve(PINNED, tmp_path))
    assert not kept.exists()
    assert index.sent


def test_unreachable_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without network and cache there is one line with the spec and the reason."""
    unreachable(monkeypatch)
    message = failure(lambda: source.resolve(PINNED, tmp_path))
    assert message.startswith("thing/a.py of released thing 1.0: not in the cache, and ConnectionError: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "1.1"}, "thing/a.py of released thing 1.1: the index lists no file of that version"),
        ({"member": "thing/c.py"}, "no such member in thing-1.0-py3-none-any.whl"),
        ({"distribution": "no-thing"}, "not in the cache, and NoSuchProjectError: "),
        ({"version": "2.0"}, "no wheel for x86_64 among 1 files of that version"),
        ({"version": "3.0"}, "not in the cache, and BadZipFile: "),
        ({"version": "4.0"}, "no wheel for x86_64 among 2 files of that version"),
    ],
    ids=["version", "member", "project", "sdist only", "damaged wheel", "other machines"],
)
def test_what_is_not_published(change: dict[str, str], message: str, index: Index, tmp_path: Path) -> None:
    """An unknown version, member or project, a version without a fitting wheel and a damaged wheel are named."""
    index.files["thing-2.0.tar.gz"] = b""
    index.files["thing-3.0-py3-none-any.whl"] = b"no zip" * 100
    index.files["thing-4.0-py3-none-macosx_11_0_arm64.whl"] = b""
    index.files["thing-4.0-py3-none-manylinux_2_28_aarch64.whl"] = b""
    assert message in failure(lambda: source.resolve({**MEMBER, **change}, tmp_path))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_wheel_for_x86_64_is_read(index: Index, tmp_path: Path) -> None:
    """Of several wheels of a version the x86_64 manylinux one is read, wherever the index lists it."""
    for tag in ("manylinux_2_28_aarch64", "manylinux_2_28_x86_64", "macosx_11_0_x86_64", "win_amd64"):
        index.files[f"thing-5.0-py3-none-{tag}.whl"] = wheel({"thing/a.py": tag.encode()})
    assert source.resolve({**MEMBER, "version": "5.0"}, tmp_path).data == b"manylinux_2_28_x86_64"


def test_credentials_of_the_index_stay_private(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message never repeats the user and password that an index URL may carry."""
    index.files["thing-1.0-py3-none-any.whl"] = b""
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//someone:secret@"))
    for spec in (MEMBER, {**MEMBER, "distribution": "no-thing"}):
        message = failure(lambda spec=spec: source.resolve(spec, tmp_path))  # type: ignore[misc]
        assert "not in the cache" in message
        assert "secret" not in message


def test_cache_that_cannot_be_written(index: Index, tmp_path: Path) -> None:
    """A cache directory that cannot be made is named."""
    assert index.url
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in failure(lambda: source.resolve(PINNED, tmp_path / "file"))


def test_which_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PIP_INDEX_URL comes first, then pip's configuration, then pypi-simple's default."""
    monkeypatch.delenv("PIP_CONFIG_FILE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip/pip.conf").write_text("[global]\nindex-url = http://configured.invalid/simple\n")
    endpoints = []
    for url in ("http://environment.invalid/simple", ""):
        monkeypatch.setenv("PIP_INDEX_URL", url)
        with published.index() as client:
            endpoints.append(client.endpoint)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with published.index() as client:
        endpoints.append(client.endpoint)
    assert endpoints == [
        "http://environment.invalid/simple/",
        "http://configured.invalid/simple/",
        pypi_simple.PYPI_SIMPLE_ENDPOINT,
    ]


def test_which_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """TOPPGATE_CACHE overrides the user's cache directory."""
    monkeypatch.setenv("TOPPGATE_CACHE", "/somewhere")
    assert published.cache() == Path("/somewhere")
    monkeypatch.delenv("TOPPGATE_CACHE")
    assert published.cache().name == "toppgate"


# -------------------------------------------------------------------------------------------------- cutting a text


TEXT = '''
import nowhere
_SPLIT_LIMIT = 8
_SPLIT_OTHER: int = 2
_SPLIT_COMPUTED = nowhere.value

@nowhere.decorated
def _topp_split_count(batch_size: nowhere.T, num_sm: int) -> nowhere.T:
    """One é."""
    return max(1, min(_SPLIT_LIMIT, num_sm // batch_size // _SPLIT_OTHER))  # the end

def twice(): pass
def twice(): pass

class Inside:
    def inner(self): pass
'''


def test_function_is_cut_exactly() -> None:
    """A function's text is its own lines from def to its last statement, without decorators."""
    text = source.function(TEXT.encode(), "_topp_split_count")
    assert text.startswith("def _topp_split_count(batch_size: nowhere.T")
    assert text.endswith("// _SPLIT_OTHER))")
    assert text in TEXT


@pytest.mark.parametrize(("name", "times"), [("absent", 0), ("twice", 2), ("inner", 0), ("Inside", 0)])
def test_function_refuses(name: str, times: int) -> None:
    """A function is cut only if the text defines it once, at top level."""
    message = failure(lambda: source.function(TEXT.encode(), name))
    assert message == f"function {name}: found {times} times at top level, expected once"


@pytest.mark.parametrize("data", [b"def f(:\n", b"\xff", b"\0"])
def test_no_python_text(data: bytes) -> None:
    """Bytes that are no Python text are refused by both cuts."""
    assert "not a Python text" in failure(lambda: source.function(data, "f"))
    assert "not a Python text" in failure(lambda: source.plan(data))


def test_plan_imports_nothing() -> None:
    """The plan runs on its own text and literal constants: imports, decorators and annotations are not touched."""
    plan = source.plan(TEXT.encode())
    assert plan is not None
    assert [plan(1, 0, 8), plan(1, 0, 64), plan(8, 0, 1)] == [4, 8, 1]


def test_no_plan() -> None:
    """A text without a split path has no plan."""
    assert source.plan(b"x = 1\n") is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("(batch_size, num_sm): return open('x')", "NameError"),
        ("(batch_size, num_sm): return _SPLIT_ABSENT", "NameError"),
        ("(batch_size, num_sm): return num_sm // 0", "ZeroDivisionError"),
        ("(batch_size, warps): return 1", "KeyError: 'warps'"),
        ("(batch_size): import os; return 1", "ImportError"),
        ("(batch_size, num_sm): return 0", "got 0, expected a positive integer"),
        ("(batch_size, num_sm): return True", "got True, expected a positive integer"),
        ("(batch_size, num_sm): return 2.0", "got 2.0, expected a positive integer"),
    ],
)
def test_a_plan_that_fails(body: str, message: str) -> None:
    """A plan that raises, wants what is not known, or gives no positive integer is one plain line."""
    plan = source.plan(f"def _topp_split_count{body}\n".encode())
    assert plan is not None
    assert message in failure(lambda: plan(8, 49152, 16))


def test_source_is_plain_data() -> None:
    """A resolved spec is still the JSON that it was, so that it can go into a record."""
    found = source.resolve(pick(PATCH_HUNKS, sha256=PATCH), published.cache())
    assert json.loads(json.dumps(found.spec)) == pick(PATCH_HUNKS, sha256=PATCH)
