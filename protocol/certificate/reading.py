"""A certificate from the folder that holds it, checked field by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from protocol import files
from protocol.certificate.model import SCHEMA, SCHEMA_VERSION, Certificate
from protocol.errors import BadInput

CERTIFICATE, RAW = "certificate.json", "raw"
#: The schemas of version 1, of simulation and replays and of live sessions.
VERSION_1 = {("diloco-protocol/certificate", 1), ("diloco-protocol/live-certificate", 1)}


def read_json(folder: Path) -> dict[str, Any]:
    """The certificate's values as they lie there, of any known version.  Raises BadInput on anything else."""
    path = folder / CERTIFICATE
    for name in files.names_in(folder):
        files.refuse_irregular(folder / name)
    try:
        found = json.loads(files.read_bytes(path).decode(), parse_constant=_no_constant)
    except FileNotFoundError:
        raise BadInput(str(path), "no such file", "the certificate (or the calibration) of a finished run") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(str(path), f"an unreadable certificate ({error})", "JSON") from None
    kind = (found.get("schema"), found.get("schema_version")) if isinstance(found, dict) else None
    if kind != (SCHEMA, SCHEMA_VERSION) and kind not in VERSION_1:
        raise BadInput(str(path), f"schema {kind}", f"{SCHEMA} version {SCHEMA_VERSION} or an older one")
    return dict(found)


def read_certificate(folder: Path) -> Certificate:
    """The certificate of an output folder.  Raises BadInput naming the first field that is not as it should be."""
    found = read_json(folder)
    if (found["schema"], found["schema_version"]) in VERSION_1:
        expected = f"version {SCHEMA_VERSION}: `protocol verify {folder} --rejudge NEW` makes one of the same rows"
        raise BadInput(str(folder / CERTIFICATE), "a certificate of version 1", expected)
    return parsed(found, str(folder / CERTIFICATE))


def parsed(values: dict[str, Any], where: str) -> Certificate:
    """Raises BadInput naming the field."""
    try:
        return Certificate.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        found = first["input"]
        shown = (
            f"a {'list' if isinstance(found, list) else 'table'}"
            if isinstance(found, dict | list)
            else f"{found!r:.60}"
        )
        raise BadInput(f"{where}, {field}", shown, first["msg"].removeprefix("Input should be ")) from None


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")
