"""Recompute a certificate from the files beside it and name everything that differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from protocol import files
from protocol.calibration import store as calibration
from protocol.calibration.check import check_carried
from protocol.certificate import version_1
from protocol.certificate.assess import assess
from protocol.certificate.model import Certificate, Head, SidecarPart, plain
from protocol.certificate.reading import CERTIFICATE, RAW, VERSION_1, parsed, read_json
from protocol.errors import BadInput, ProtocolError
from protocol.evidence import store
from protocol.evidence.consistency import contradictions
from protocol.evidence.model import Evidence

#: What certificates that were made before it was there do not state, of an envelope and of the whole; nothing else
#: rests on it.
_LATER, _LATER_OF_ALL = {"power_curve"}, {"gauges"}


def verify(folder: Path) -> list[str]:
    """Every difference between the certificate and what its raw files say; empty when they agree."""
    stated = read_json(folder)
    found = list(other_files(stated, folder / RAW))
    if (folder / CERTIFICATE).read_bytes().decode() != files.canonical_json(stated):
        found.append(f"{CERTIFICATE}: not in canonical form; it was edited after it was written")
    try:
        if (stated["schema"], stated["schema_version"]) in VERSION_1:
            return [*found, *version_1.differences(folder, stated)]
        recomputed = _recomputed(folder, stated, found)
    except ProtocolError as error:
        return [*found, str(error)]
    except (OSError, KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        return [*found, f"{CERTIFICATE} or {RAW}: cannot be judged ({type(error).__name__}: {error})"]
    for name in _LATER_OF_ALL - stated.keys():
        recomputed.pop(name, None)
    for was, now in zip(stated["claims"], recomputed["claims"], strict=False):
        for name in _LATER - was["envelope"].keys():
            now["envelope"].pop(name)
    try:
        again = json.loads(files.canonical_json(recomputed))
    except ValueError:
        return [*found, f"{RAW}: gives numbers that are NaN or infinite, which no certificate holds"]
    return found + list(
        differences({key: value for key, value in stated.items() if key not in ("files", "pages")}, again)
    )


def _recomputed(folder: Path, stated: dict[str, Any], found: list[str]) -> dict[str, Any]:
    """What the raw files give; adds to `found` what contradicts itself on the way."""
    certificate = parsed(stated, CERTIFICATE)
    head = asked_of(folder)
    found += differences(certificate.head().plain(), head.plain())
    found += _calibrations([regime.sidecar for regime in head.regimes], folder / RAW)
    evidence = store.read(folder / RAW)
    found += contradictions(evidence)
    return plain(assess(head, evidence))


def rejudged(folder: Path) -> tuple[Head, list[Evidence], Certificate]:
    """The raw files under the rules of now.  Raises BadInput where they are not the ones that were certified."""
    stated = read_json(folder)
    head, evidence = asked_of(folder), store.read(folder / RAW)
    calibrated = _calibrations([regime.sidecar for regime in head.regimes], folder / RAW)
    found = [*other_files(stated, folder / RAW), *calibrated, *contradictions(evidence)]
    if found:
        raise BadInput(str(folder), found[0], "the raw files that were certified")
    return head, evidence, assess(head, evidence)


def asked_of(folder: Path) -> Head:
    """What was asked, as the raw files hold it.  Raises BadInput naming the field that is not as it should be."""
    text = (folder / RAW / store.ASKED).read_text("utf-8")
    try:
        return Head.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        raise BadInput(f"{RAW}/{store.ASKED}, {field}", f"{first['input']!r:.60}", first["msg"]) from None


def _calibrations(sidecars: Sequence[SidecarPart], raw: Path) -> Iterator[str]:
    """Differences between what sidecars are said to rest on and the calibrations among the raw files."""
    checked = []
    for sidecar in sidecars:
        stated = sidecar.calibration
        if stated is None:
            continue
        if stated not in checked:
            yield from check_carried(stated, raw)
            checked.append(stated)
        if sidecar.calibrated:
            fitted = calibration.read(raw / calibration.carried_as(stated["name"])).model.plain()
            own = plain(sidecar)
            yield from differences({key: own.get(key) for key in fitted}, fitted, f"sidecar {stated['name']}")


def other_files(certificate: dict[str, Any], raw: Path) -> Iterator[str]:
    """Raw files that are not those that the certificate lists, with their digests."""
    listed = certificate.get("files")
    if not isinstance(listed, dict):
        yield f"{CERTIFICATE}, files: found {listed!r}; expected the digests of the raw files"
        return
    folders = {parent.as_posix() for name in listed for parent in PurePosixPath(name).parents}
    present = {path.relative_to(raw).as_posix() for path in raw.rglob("*")} - folders
    for name in sorted({*listed, *present, store.ASKED}):
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
