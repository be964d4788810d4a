"""Signatures with real keys: what is signed verifies, and a missing, foreign, altered or moved signature does not."""

import base64
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipeline
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as elliptic
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from test_verify import edit_rows, reseal

from toppgate import signing
from toppgate.errors import SigningError
from toppgate.verify import verify

Run = tuple[Path, subprocess.CompletedProcess[str]]


def written(home: Path, name: str, key: Any, encryption: KeySerializationEncryption | None = None) -> tuple[Path, Path]:
    """Write a key pair as PEM files and return their paths, the private one first."""
    private, public = home / f"{name}.pem", home / f"{name}.pub"
    encoded = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())
    private.write_bytes(encoded)
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture
def keys(tmp_path: Path) -> list[tuple[Path, Path]]:
    """Return two key pairs, each private and public."""
    return [written(tmp_path, name, Ed25519PrivateKey.generate()) for name in ("ours", "theirs")]


@pytest.fixture
def run(run_by_command: Run, tmp_path: Path) -> Path:
    """Return a copy of a sealed run that passes."""
    return Path(shutil.copytree(run_by_command[0], tmp_path / "run"))


def test_the_commands_sign_and_verify(run: Path, keys: list[tuple[Path, Path]]) -> None:
    """A signed run verifies with its key, with none (and says that it was not checked), and not with another."""
    (private, public), (_, foreign) = keys
    signed = pipeline.toppgate("sign", run, "--key", private, "--json")
    assert (signed.returncode, signed.stderr) == (0, "")
    assert json.loads(signed.stdout)["verdict"] == "PASS"
    assert pipeline.toppgate("verify", run, "--key", public).returncode == 0
    assert "signed, but the signature was not checked: no key was given" in verify(run).notes
    refused = pipeline.toppgate("verify", run, "--key", foreign)
    assert refused.returncode == 1
    assert f"verify      receipt.dsse.json: holds no valid signature by {foreign}\n" in refused.stdout


def test_the_envelope_is_dsse(run: Path, keys: list[tuple[Path, Path]]) -> None:
    """What is signed is DSSE's own encoding of the receipt's bytes, checked here without the library."""
    (private, _), _ = keys
    signing.sign(run, private)
    envelope = json.loads((run / signing.NAME).read_bytes())
    payload = base64.b64decode(envelope["payload"])
    assert payload == (run / "receipt.json").read_bytes()
    kind = b"application/vnd.in-toto+json"
    encoded = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(private.read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    key.public_key().verify(base64.b64decode(envelope["signatures"][0]["sig"]), encoded)


def test_two_signatures(run: Path, keys: list[tuple[Path, Path]]) -> None:
    """A second key adds its signature, the same key again changes nothing, and each holds by itself."""
    for private, _ in (*keys, keys[0]):
        signing.sign(run, private)
    assert len(json.loads((run / signing.NAME).read_bytes())["signatures"]) == 2
    assert [verify(run, public).difference for _, public in keys] == [None, None]


def test_an_unsigned_run_is_refused_where_a_key_is_given(run: Path, keys: list[tuple[Path, Path]]) -> None:
    """Nothing is asked of an unsigned run, unless a key is."""
    assert verify(run).difference is None
    assert str(verify(run, keys[0][1]).difference).startswith("receipt.dsse.json: not there, so nothing is signed by ")


def change(**keys: Any) -> Callable[[Path], None]:
    """Return an edit of the envelope."""
    return lambda run: pipeline.edit(run, signing.NAME, lambda envelope: envelope.update(keys))


def signature(**keys: Any) -> Callable[[Path], None]:
    """Return an edit of the envelope's first signature."""
    return lambda run: pipeline.edit(run, signing.NAME, lambda envelope: envelope["signatures"][0].update(keys))


def hashed_again(change: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return an edit after which everything in the receipt is computed again."""

    def both(run: Path) -> None:
        change(run)
        reseal(run)

    return both


def wrong_row(run: Path) -> None:
    """Change a row's code."""
    edit_rows(run, lambda rows: rows[0].update(code="forced_nan"))


def sealed_at(run: Path) -> None:
    """Change what nothing else in a run tells of."""
    pipeline.edit(run, "receipt.json", lambda receipt: receipt["predicate"].update(sealed="yesterday"))


ALTERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "time of the seal, hashed again": (hashed_again(sealed_at), "dsse.json: holds another receipt than receipt.json"),
    "row": (wrong_row, "rows.jsonl: SHA-256 is "),
    "row, hashed again": (hashed_again(wrong_row), "dsse.json: holds another receipt than receipt.json"),
    "payload": (change(payload=""), "receipt.dsse.json: holds another receipt than receipt.json"),
    "payload that is no base64": (change(payload="*"), "receipt.dsse.json: not a DSSE envelope: Error"),
    "payload type": (change(payloadType="text/plain"), "receipt.dsse.json: not a DSSE envelope of application/"),
    "no signatures": (change(signatures=[]), "receipt.dsse.json: holds no valid signature by "),
    "signatures of another type": (change(signatures={}), "receipt.dsse.json: not a DSSE envelope of "),
    "one more key": (change(more=1), "receipt.dsse.json: not a DSSE envelope of "),
    "signature of zeros": (signature(sig=base64.b64encode(bytes(64)).decode()), "holds no valid signature by "),
    "signature of another length": (signature(sig="AAAA"), "holds no valid signature by "),
    "signature that is no text": (signature(sig=1), "holds no valid signature by "),
    "another key's id": (signature(keyid="0" * 64), "holds no valid signature by "),
    "cut short": (
        lambda run: (run / signing.NAME).write_bytes((run / signing.NAME).read_bytes()[:-9]),
        "receipt.dsse.json: not a DSSE envelope: JSONDecodeError",
    ),
    "not canonical": (
        lambda run: (run / signing.NAME).write_bytes((run / signing.NAME).read_bytes() + b"\n"),
        "receipt.dsse.json: not a DSSE envelope of ",
    ),
    "a list": (lambda run: (run / signing.NAME).write_bytes(b"[]\n"), "receipt.dsse.json: not a DSSE envelope: "),
    "deleted": (lambda run: (run / signing.NAME).unlink(), "receipt.dsse.json: not there"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_what_was_altered_after_signing_is_refused(run: Path, keys: list[tuple[Path, Path]], name: str) -> None:
    """The receipt, what it names, the envelope or its signature: none can change."""
    (private, public), _ = keys
    signing.sign(run, private)
    damage, words = ALTERED[name]
    damage(run)
    assert words in str(verify(run, public).difference)


def test_an_envelope_of_another_run_is_refused(run: Path, stopped_run: Run, keys: list[tuple[Path, Path]]) -> None:
    """A good signature by the right key, on another run's receipt, is not this run's, with or without the key."""
    (private, public), _ = keys
    signing.sign(stopped_run[0], private)
    (stopped_run[0] / signing.NAME).rename(run / signing.NAME)
    for key in (None, public):
        assert verify(run, key).difference == "receipt.dsse.json: holds another receipt than receipt.json"
    with pytest.raises(SigningError, match="holds another receipt"):
        signing.sign(run, private)


def test_a_run_that_does_not_verify_is_not_signed(run: Path, keys: list[tuple[Path, Path]]) -> None:
    """One line, exit status 2, and no envelope."""
    (run / "rows.jsonl").write_bytes(b"")
    done = pipeline.toppgate("sign", run, "--key", keys[0][0])
    assert (done.returncode, done.stdout) == (2, "")
    assert "not signed, since it does not verify: rows.jsonl: SHA-256 is " in done.stderr
    assert not (run / signing.NAME).exists()


def test_a_key_that_cannot_be_used_is_one_line(run: Path, tmp_path: Path, keys: list[tuple[Path, Path]]) -> None:
    """A missing file, no PEM, the wrong half, an encrypted one, and another algorithm's: an error, never a verdict."""
    (private, public), _ = keys
    (tmp_path / "text").write_text("secret")
    other = written(tmp_path, "elliptic", elliptic(SECP256R1()))
    locked, _ = written(tmp_path, "locked", Ed25519PrivateKey.generate(), BestAvailableEncryption(b"secret"))
    refused = [(tmp_path / "absent", "cannot be read"), (tmp_path / "text", "not an unencrypted private key")]
    refused += [(public, "not an unencrypted private key"), (other[0], "expected an ed25519 private key")]
    for key, words in [*refused, (locked, "not an unencrypted private key")]:
        with pytest.raises(SigningError, match=words):
            signing.sign(run, key)
    assert not (run / signing.NAME).exists()
    for key, words in [(private, "not an unencrypted public key"), (other[1], "expected an ed25519 public key")]:
        with pytest.raises(SigningError, match=words):
            verify(run, key)
    done = pipeline.toppgate("verify", run, "--key", private)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"toppgate: {private}: not an unencrypted public key in PEM")
