"""Signatures: an in-toto statement in a DSSE envelope; those of before are still read."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)

from protocol.certificate import signature
from protocol.errors import BadInput
from protocol.files import canonical_json

#: A certificate, its signature as version 0.1 wrote it, and the public key.
KEPT = Path(__file__).parents[1] / "golden" / "signatures"
MADE = {"schema_version": 2, "verdict": "PASS", "tier": {"number": 1}, "sentence": "It won.", "preregistration": None}


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """Private and public, as PEM files."""
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    key = Ed25519PrivateKey.generate()
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "certificate.json"
    path.write_text(canonical_json(MADE))
    return path


def test_the_envelope_is_dsse_and_its_statement_in_toto(certificate: Path, keys: tuple[Path, Path]) -> None:
    pytest.importorskip("securesystemslib")
    envelope = json.loads(signature.sign(certificate, keys[0]).read_text())
    assert set(envelope) == {"payload", "payloadType", "signatures"} and len(envelope["signatures"]) == 1
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"]
    assert kind == "application/vnd.in-toto+json"
    stated = json.loads(payload)
    assert stated["_type"] == "https://in-toto.io/Statement/v1" and stated["predicateType"].endswith(":certificate:2")
    digest = hashlib.sha256(certificate.read_bytes()).hexdigest()
    assert stated["subject"] == [{"name": "certificate.json", "digest": {"sha256": digest}}]
    assert stated["predicate"]["verdict"] == "PASS" and stated["predicate"]["sentence"] == "It won."
    # DSSE v1 signs "DSSEv1 SP len(type) SP type SP len(payload) SP payload"; by hand, with the key alone.
    signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
    public = load_pem_public_key(keys[1].read_bytes())
    public.verify(base64.b64decode(envelope["signatures"][0]["sig"]), signed)  # type: ignore[union-attr, call-arg]
    assert signature.check(certificate, keys[1]) is None


def test_what_was_changed_or_signed_by_another_is_found(
    certificate: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    pytest.importorskip("securesystemslib")
    path = signature.sign(certificate, keys[0])
    good, wrong = path.read_text(), "certificate.sig: not a signature of certificate.json by key.pub"
    other = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "other.pub").write_bytes(other)
    assert signature.check(certificate, tmp_path / "other.pub") == wrong.replace("key.pub", "other.pub")
    envelope = json.loads(good)
    stated = json.loads(base64.b64decode(envelope["payload"]))
    stated["predicate"]["verdict"] = "FAIL"
    forged = base64.b64encode(json.dumps(stated).encode()).decode()
    kind = {**envelope, "payloadType": "text/plain"}
    broken = [{**envelope, "payload": forged}, kind, {**envelope, "signatures": []}, {}, {"payload": 1}]
    for text in (*map(json.dumps, broken), "{", "", "AAAA", "\x00"):
        path.write_text(text)
        assert signature.check(certificate, keys[1]) == wrong, text
    path.write_bytes(b"\xff\xfe")
    assert signature.check(certificate, keys[1]) == wrong
    path.write_text(good)
    assert signature.check(certificate, keys[1]) is None
    certificate.write_text(canonical_json({**MADE, "verdict": "FAIL"}))
    assert signature.check(certificate, keys[1]) == wrong
    path.unlink()
    assert signature.check(certificate, keys[1]) == "certificate.sig: missing"


def test_a_signature_of_before_is_still_read(tmp_path: Path) -> None:
    shutil.copytree(KEPT, tmp_path / "kept")
    kept = tmp_path / "kept" / "certificate.json"
    assert not kept.with_name("certificate.sig").read_text().startswith("{")
    assert signature.check(kept, tmp_path / "kept" / "key.pub") is None
    kept.write_text(kept.read_text().replace("PASS", "FAIL"))
    assert "not a signature" in (signature.check(kept, tmp_path / "kept" / "key.pub") or "")


def test_a_key_of_another_kind_is_named(tmp_path: Path) -> None:
    pytest.importorskip("securesystemslib")
    (tmp_path / "no.pem").write_text("no key")
    with pytest.raises(BadInput, match=r"no\.pem.*Ed25519 private key"):
        signature.check_private_key(tmp_path / "no.pem")
