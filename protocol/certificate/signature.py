"""Optional Ed25519 signature over a certificate's bytes, by a kept library (extra `sign`)."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from protocol.errors import BadInput, ProtocolError
from protocol.files import write_text

SIGNATURE = "certificate.sig"


def check_private_key(path: Path) -> None:
    """See before a long run that it can be signed.  Raises BadInput or ProtocolError."""
    _key(path, private=True)


def sign(certificate: Path, key: Path) -> Path:
    """Write `certificate.sig` (base64) beside the certificate.  key : PEM file of an Ed25519 private key.

    Raises BadInput when the key is none, ProtocolError when the extra is not installed.
    """
    private = _key(key, private=True)
    path = certificate.with_name(SIGNATURE)
    write_text(path, base64.b64encode(private.sign(certificate.read_bytes())).decode() + "\n")
    return path


def check(certificate: Path, key: Path) -> str | None:
    """None when the signature beside the certificate is the key's, else what is wrong.  key : public, PEM."""
    from cryptography.exceptions import InvalidSignature

    public = _key(key, private=False)
    try:
        signature = base64.b64decode(certificate.with_name(SIGNATURE).read_text("ascii").strip(), validate=True)
        public.verify(signature, certificate.read_bytes())
    except FileNotFoundError:
        return f"{SIGNATURE}: missing"
    except (InvalidSignature, ValueError):
        return f"{SIGNATURE}: not a signature of {certificate.name} by {key.name}"
    return None


def _key(path: Path, private: bool) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
    except ImportError:
        raise ProtocolError("signatures need the extra: pip install 'diloco-protocol[sign]'") from None
    kind = "private" if private else "public"
    try:
        data = path.read_bytes()
        loaded: Any = load_pem_private_key(data, password=None) if private else load_pem_public_key(data)
    except OSError as error:
        raise BadInput(str(path), error.strerror or "an error", f"a PEM file with an Ed25519 {kind} key") from None
    except (ValueError, TypeError) as error:
        raise BadInput(str(path), " ".join(str(error).split())[:120], f"an Ed25519 {kind} key in PEM") from None
    if not isinstance(loaded, Ed25519PrivateKey if private else Ed25519PublicKey):
        raise BadInput(str(path), "a key of another kind", f"an Ed25519 {kind} key")
    return loaded
