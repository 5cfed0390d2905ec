"""Preregistration, signature and running again, as a reviewer uses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Protocol, refused
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from protocol.certificate.model import json_schema
from protocol.files import canonical_json

QUICK = ("--draws", "19", "--jobs", "1", "--min-effect", "0")


def test_preregistration_is_honoured_and_departures_show(
    protocol: Protocol, inside: Protocol, small: Path, aware: Path, tmp_path: Path
) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    asked = ("certify", aware, "--regime", small, "--out", out, *QUICK)
    written = protocol(*asked, "--preregister", plan)
    assert written.returncode == 0 and plan.exists() and not (out / "certificate.json").exists()
    refused(inside(*asked, "--preregister", plan), "plan.json", "written once")
    kept = protocol(*asked, "--preregistered", plan)
    made = json.loads((out / "certificate.json").read_text())
    assert kept.returncode == 0 and made["preregistration"] == json.loads(plan.read_text())["digest"]
    refused(inside(*asked, "--seed", 7, "--preregistered", plan), "departs", "settings.root_seed")
    refused(inside(*asked, "--slo", "e2e<=900ms", "--preregistered", plan), "departs", "regimes")
    aware.write_text(aware.read_text() + "\n# a later version\n")
    refused(inside(*asked, "--preregistered", plan), "departs", "contender.digest")
    plan.write_text(plan.read_text().replace('"draws": 19', '"draws": 18'))
    refused(inside(*asked, "--preregistered", plan), "digest")


@pytest.mark.slow
def test_signature_and_rerun(protocol: Protocol, inside: Protocol, small: Path, aware: Path, tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    private, public, out = tmp_path / "key.pem", tmp_path / "key.pub", tmp_path / "out"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    asked = ("certify", aware, "--regime", small, "--out", out, *QUICK)
    refused(inside(*asked, "--sign", small), "small.toml", "Ed25519")
    assert protocol(*asked, "--sign", private).returncode == 0
    assert protocol("verify", out, "--key", public).returncode == 0
    again = protocol("verify", out, "--rerun", aware, "--regime", small)
    assert again.returncode == 0, again.stdout + again.stderr
    aware.write_text(aware.read_text().replace("< 4", "< 5"))
    other = protocol("verify", out, "--rerun", aware, "--regime", small)
    assert other.returncode == 1 and "contender.digest" in other.stdout and "placements.parquet" in other.stdout
    stranger = Ed25519PrivateKey.generate().public_key()
    public.write_bytes(stranger.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    assert "certificate.sig" in protocol("verify", out, "--key", public).stdout


def test_certificate_keeps_to_its_schema(protocol: Protocol, small: Path, aware: Path, tmp_path: Path) -> None:
    import jsonschema

    import protocol as package

    text = (Path(package.__file__).parent / "certificate.schema.json").read_text()
    assert text == canonical_json(json_schema()), "write it anew: canonical_json(json_schema())"
    schema = json.loads(text)
    checker = jsonschema.Draft202012Validator(schema)
    for name, extra in (("pass", ()), ("few", ("--seeds", 3, "--draws", "auto"))):
        protocol("certify", aware, "--regime", small, "--out", tmp_path / name, *QUICK, *extra)
        made = json.loads((tmp_path / name / "certificate.json").read_text())
        assert [e.message for e in checker.iter_errors(made)] == []
    made["claims"][0]["envelope"]["p"] = 0.0
    made["verdict"] = "MAYBE"
    assert len(list(checker.iter_errors(made))) == 2
