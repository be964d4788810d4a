"""A signature on a receipt: a DSSE envelope beside it, by an ed25519 key in a PEM file (extra ``sign``).

The envelope holds the receipt byte for byte, so no edit of the receipt, or of anything that it names, survives it.  It
lies outside what the receipt names, since a receipt cannot hold its own signature.  Unsigned is the default.  What a
signature says: that the holder of the key signed these bytes; not when, and not that anything was run.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import rfc8785

from toppgate.errors import SigningError

NAME: Final = "receipt.dsse.json"

#: in-toto's media type of a statement (in-toto Attestation Framework, "DSSE envelope").
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"

#: What the library raises for an envelope that is none.
_MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def sign(directory: Path, key: Path) -> str:
    """Sign a sealed run's receipt as it stands and return the key's id; another key's signature is kept.

    Side effects: ``receipt.dsse.json``.  Not checked here: the run; ``verify`` is for that.

    Raises
    ------
    SigningError : the key cannot be used, or an envelope is there that holds another receipt
    """
    signer = _private(key)
    from securesystemslib.dsse import Envelope  # noqa: PLC0415 - the extra `sign`

    path, receipt = directory / NAME, (directory / "receipt.json").read_bytes()
    envelope = Envelope(receipt, PAYLOAD_TYPE, {})
    if path.exists():
        if (problem := _problem(path, receipt)) is not None:
            raise SigningError(f"{path}: {problem}")
        envelope = Envelope.from_dict(json.loads(path.read_bytes()))
    signature = envelope.sign(signer)
    partial = path.with_suffix(".partial")
    partial.write_bytes(rfc8785.dumps(envelope.to_dict()) + b"\n")
    partial.replace(path)
    return str(signature.keyid)


def differences(directory: Path, key: Path | None) -> Iterator[str]:
    """Yield why a run's envelope is not this receipt's, or not by this key; nothing is asked of a run without either.

    ``key`` is a public key in a PEM file.  Raises ``SigningError`` where it cannot be used.
    """
    public = None if key is None else _public(key)
    path, receipt = directory / NAME, (directory / "receipt.json").read_bytes()
    if path.exists():
        problem = _problem(path, receipt)
        if problem is not None:
            yield f"{NAME}: {problem}"
        elif public is not None and not _signed(path, public):
            yield f"{NAME}: holds no valid signature by {key}"
    elif public is not None:
        yield f"{NAME}: not there, so nothing is signed by {key}"


def _problem(path: Path, receipt: bytes) -> str | None:
    """Say why a file is not an envelope of a receipt, whoever signed it."""
    try:
        data = path.read_bytes()
        found = json.loads(data)
        held = base64.b64decode(found["payload"], validate=True)
        alike = found.keys() == {"payload", "payloadType", "signatures"} and data == rfc8785.dumps(found) + b"\n"
    except _MALFORMED as error:
        return f"not a DSSE envelope: {type(error).__name__}"
    if not alike or not isinstance(found["signatures"], list) or found["payloadType"] != PAYLOAD_TYPE:
        return f"not a DSSE envelope of {PAYLOAD_TYPE} in canonical form"
    return None if held == receipt else "holds another receipt than receipt.json"


def _signed(path: Path, public: Any) -> bool:
    from securesystemslib.dsse import Envelope  # noqa: PLC0415
    from securesystemslib.exceptions import VerificationError  # noqa: PLC0415

    try:
        return bool(Envelope.from_dict(json.loads(path.read_bytes())).verify([public], 1))
    except (VerificationError, *_MALFORMED):
        return False


def _private(key: Path) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415
        from securesystemslib.signer import CryptoSigner  # noqa: PLC0415
    except ImportError as error:
        raise _missing(error) from None
    loaded = _loaded(key, "private", lambda data: load_pem_private_key(data, None))
    if not isinstance(loaded, Ed25519PrivateKey):
        raise SigningError(f"{key}: got {type(loaded).__name__}, expected an ed25519 private key")
    return CryptoSigner(loaded)


def _public(key: Path) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415
        from securesystemslib.signer import SSlibKey  # noqa: PLC0415
    except ImportError as error:
        raise _missing(error) from None
    loaded = _loaded(key, "public", load_pem_public_key)
    if not isinstance(loaded, Ed25519PublicKey):
        raise SigningError(f"{key}: got {type(loaded).__name__}, expected an ed25519 public key")
    return SSlibKey.from_crypto(loaded)


def _loaded(key: Path, kind: str, load: Any) -> Any:
    try:
        return load(key.read_bytes())
    except OSError as error:
        raise SigningError(f"{key}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError) as error:  # what is no PEM key, what is encrypted
        raise SigningError(f"{key}: not an unencrypted {kind} key in PEM: {str(error).split('.')[0]}") from None


def _missing(error: ImportError) -> SigningError:
    return SigningError(f"signatures need the extra `sign`: {error}")
