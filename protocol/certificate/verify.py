"""Recompute a certificate from the files beside it and name everything that differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from protocol import files
from protocol.calibration import store as calibration
from protocol.certificate import assess as standard
from protocol.certificate import live_certificate
from protocol.errors import BadInput, ProtocolError
from protocol.evidence import live
from protocol.evidence import store as evidence

CERTIFICATE, RAW = "certificate.json", "raw"
STANDARD = (standard.SCHEMA, standard.SCHEMA_VERSION)
LIVE = (live_certificate.SCHEMA, live_certificate.SCHEMA_VERSION)


def read_certificate(folder: Path, known: Sequence[tuple[str, int]] = (STANDARD,)) -> dict[str, Any]:
    """The certificate of an output folder.  Raises BadInput when it is missing, broken or of no `known` schema."""
    path = folder / CERTIFICATE
    try:
        certificate = json.loads(path.read_bytes().decode(), parse_constant=_no_constant)
    except FileNotFoundError:
        raise BadInput(str(path), "no such file", "the certificate (or the calibration) of a finished run") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(str(path), f"an unreadable certificate ({error})", "JSON") from None
    found = (certificate.get("schema"), certificate.get("schema_version")) if isinstance(certificate, dict) else None
    if found not in known:
        expected = " or ".join(f"{schema} version {version}" for schema, version in known)
        raise BadInput(str(path), f"schema {found}", expected)
    return dict(certificate)


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def verify(folder: Path) -> list[str]:
    """Every difference between the certificate and what its raw files say; empty when they agree."""
    certificate = read_certificate(folder, (STANDARD, LIVE))
    is_live = certificate["schema"] == live_certificate.SCHEMA
    found = list(_files(certificate, folder / RAW, live.TABLES if is_live else evidence.TABLES))
    if (folder / CERTIFICATE).read_bytes().decode() != files.canonical_json(certificate):
        found.append(f"{CERTIFICATE}: not in canonical form; it was edited after it was written")
    try:
        asked = json.loads((folder / RAW / evidence.ASKED).read_text("utf-8"))
        if is_live:
            found += differences(live_certificate.head_of(certificate), asked)
            if asked["calibration"] is not None:
                found += calibration.check_carried(asked["calibration"], folder / RAW)
            session = live.read(folder / RAW)
            found += live.contradictions(session)
            recomputed = live_certificate.assess(asked, session)
        else:
            found += differences(standard.head_of(certificate), asked)
            found += _calibrations([regime["sidecar"] for regime in asked["regimes"]], folder / RAW)
            recomputed = standard.assess(asked, evidence.read(folder / RAW))
    except ProtocolError as error:
        return [*found, str(error)]
    except (OSError, KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        return [*found, f"{CERTIFICATE} or {RAW}: cannot be judged ({type(error).__name__}: {error})"]
    try:
        plain = json.loads(files.canonical_json(recomputed))
    except ValueError:
        return [*found, f"{RAW}: gives numbers that are NaN or infinite, which no certificate holds"]
    stated = {key: value for key, value in certificate.items() if key != "files"}
    return found + list(differences(stated, plain))


def _calibrations(sidecars: Sequence[dict[str, Any]], raw: Path) -> Iterator[str]:
    """Differences between what sidecars are said to rest on and the calibrations among the raw files."""
    checked = []
    for sidecar in sidecars:
        stated = sidecar.get("calibration")
        if stated is None:
            continue
        if stated not in checked:
            yield from calibration.check_carried(stated, raw)
            checked.append(stated)
        fitted = calibration.read(raw / calibration.carried_as(stated["name"]))["model"]
        yield from differences({key: sidecar.get(key) for key in fitted}, fitted, f"sidecar {stated['name']}")


def _files(certificate: dict[str, Any], raw: Path, tables: Sequence[str]) -> Iterator[str]:
    listed = certificate.get("files")
    if not isinstance(listed, dict):
        yield f"{CERTIFICATE}, files: found {listed!r}; expected the digests of the raw files"
        return
    folders = {parent.as_posix() for name in listed for parent in PurePosixPath(name).parents}
    present = {path.relative_to(raw).as_posix() for path in raw.rglob("*")} - folders
    for name in sorted({*listed, *present, *tables, evidence.ASKED}):
        if name not in listed:
            yield f"{RAW}/{name}: not named by the certificate"
        elif name not in present:
            yield f"{RAW}/{name}: missing"
        elif not (raw / name).is_file() or files.sha256(raw / name) != listed[name]:
            yield f"{RAW}/{name}: its SHA-256 is not the one in the certificate"


def differences(stated: Any, recomputed: Any, path: str = "") -> Iterator[str]:
    """Each place at which two JSON values differ, as `path: stated A, recomputed B`."""
    if isinstance(stated, dict) and isinstance(recomputed, dict):
        for key in sorted({*stated, *recomputed}):
            if key not in stated or key not in recomputed:
                which = "is not in the certificate" if key not in stated else "cannot be recomputed"
                yield f"{path}.{key}".lstrip(".") + f": {which}"
            else:
                yield from differences(stated[key], recomputed[key], f"{path}.{key}".lstrip("."))
    elif isinstance(stated, list) and isinstance(recomputed, list) and len(stated) == len(recomputed):
        for index, (a, b) in enumerate(zip(stated, recomputed, strict=True)):
            yield from differences(a, b, f"{path}[{index}]")
    elif json.dumps(stated) != json.dumps(recomputed):  # tells 1 from 1.0 and 0.0 from -0.0
        yield f"{path}: stated {json.dumps(stated)}, recomputed {json.dumps(recomputed)}"
