"""Optional signature of a certificate: an in-toto statement in a DSSE envelope, by kept libraries (extra `sign`).

The statement names the certificate's bytes by their SHA-256, and says verdict, sentence and registration, so that
whoever collects attestations can read it without this program.  Files of before are the base64 of an Ed25519 signature
over the certificate's bytes, and are still verified.  Formats: in-toto Statement v1; DSSE v1 (secure-systems-lab).
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from protocol import files
from protocol.errors import BadInput, ProtocolError
from protocol.files import write_text

SIGNATURE = files.SIGNATURE
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
#: What the predicate is: a certificate of this project, with the version of its schema at the end.
PREDICATE = "urn:diloco-protocol:certificate"
_STATED = ("verdict", "tier", "sentence", "preregistration")


def check_private_key(path: Path) -> None:
    """See before a long run that it can be signed.  Raises BadInput or ProtocolError."""
    _dsse()
    _key(path, private=True)


def sign(certificate: Path, key: Path) -> Path:
    """Write `certificate.sig`, a DSSE envelope, beside the certificate.  key : PEM file of an Ed25519 private key.

    Raises BadInput when the key is none, ProtocolError when the extra is not installed.
    """
    dsse, signers = _dsse()
    envelope = dsse.Envelope(files.canonical_json(statement(certificate)).encode(), PAYLOAD_TYPE, {})
    envelope.sign(signers.CryptoSigner(_key(key, private=True)))
    path = certificate.with_name(SIGNATURE)
    write_text(path, files.canonical_json(envelope.to_dict()))
    return path


def statement(certificate: Path) -> dict[str, Any]:
    """The in-toto statement about a certificate's bytes."""
    made = files.from_json(certificate.read_bytes())
    return {
        "_type": STATEMENT,
        "subject": [{"name": certificate.name, "digest": {"sha256": files.sha256(certificate)}}],
        "predicateType": f"{PREDICATE}:{made['schema_version']}",
        "predicate": {name: made.get(name) for name in _STATED},
    }


def check(certificate: Path, key: Path) -> str | None:
    """None when the signature beside the certificate is the key's, else what is wrong.  key : public, PEM."""
    public = _key(key, private=False)
    try:
        text = certificate.with_name(SIGNATURE).read_text("utf-8").strip()
    except FileNotFoundError:
        return f"{SIGNATURE}: missing"
    except ValueError:
        text = ""
    signed = _enveloped(text, certificate, public) if text.startswith("{") else _bare(text, certificate, public)
    return None if signed else f"{SIGNATURE}: not a signature of {certificate.name} by {key.name}"


def _enveloped(text: str, certificate: Path, public: Any) -> bool:
    """Whether the key signed this envelope, and the statement in it is about this certificate as it is."""
    dsse, signers = _dsse()
    from securesystemslib.exceptions import VerificationError

    try:
        envelope = dsse.Envelope.from_dict(files.from_json(text))
        envelope.verify([signers.SSlibKey.from_crypto(public)], 1)
        stated = files.from_json(envelope.payload)
    except (VerificationError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return bool(envelope.payload_type == PAYLOAD_TYPE and stated == statement(certificate))


def _bare(text: str, certificate: Path, public: Any) -> bool:
    """Whether the key signed the certificate's bytes: the signatures of before."""
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(base64.b64decode(text, validate=True), certificate.read_bytes())
    except (InvalidSignature, ValueError):
        return False
    return True


def _dsse() -> tuple[Any, Any]:
    try:
        from securesystemslib import dsse, signer
    except ImportError:
        raise _missing() from None
    return dsse, signer


def _missing() -> ProtocolError:
    return ProtocolError("signatures need the extra: pip install 'diloco-protocol[sign]'")


def _key(path: Path, private: bool) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
    except ImportError:
        raise _missing() from None
    kind = "private" if private else "public"
    try:
        data = files.read_bytes(path, 1 << 20)
        loaded: Any = load_pem_private_key(data, password=None) if private else load_pem_public_key(data)
    except OSError as error:
        raise BadInput(str(path), error.strerror or "an error", f"a PEM file with an Ed25519 {kind} key") from None
    except (ValueError, TypeError) as error:
        raise BadInput(str(path), " ".join(str(error).split())[:120], f"an Ed25519 {kind} key in PEM") from None
    if not isinstance(loaded, Ed25519PrivateKey if private else Ed25519PublicKey):
        raise BadInput(str(path), "a key of another kind", f"an Ed25519 {kind} key")
    return loaded
