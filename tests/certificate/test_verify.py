"""Whatever is changed in a certificate's folder is found; an untouched folder verifies."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import FunctionSource, head_for, quiet, ran, setting, write_folder

import protocol
from adapters.sidecars.simulated import shipped_calibrations
from protocol import files
from protocol.calibration import store as calibration
from protocol.certificate.model import Head, json_schema
from protocol.certificate.reading import CERTIFICATE, RAW, read_certificate
from protocol.certificate.verify import differences, verify
from protocol.cli.compare import _trusted
from protocol.cli.remaking import recomputed
from protocol.errors import BadInput, ProtocolError
from protocol.evidence import store as evidence

#: A real one, so that its rows are among what is changed.
CALIBRATION = shipped_calibrations()["vllm-cpu"]
CARRIED = tuple(
    f"{calibration.carried_as('vllm-cpu')}/{name}" for name in sorted(p.name for p in CALIBRATION.iterdir())
)
SCHEMA = Path(protocol.__file__).parent / "certificate.schema.json"
TABLES = (evidence.DECISIONS, evidence.PLACEMENTS, evidence.REQUESTS, evidence.SEEDS)
NAMES = (CERTIFICATE, *(f"{RAW}/{name}" for name in (evidence.ASKED, *TABLES, *CARRIED)))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificate")
    asked, measured = head_for(FunctionSource(quiet), [setting()]).plain(), calibration.read(CALIBRATION)
    asked["regimes"][0]["sidecar"] |= {
        **measured.model.plain(), "calibrated": True, "calibration": measured.stated(),
    }  # fmt: skip
    write_folder(folder, Head.model_validate(asked), ran(), [CALIBRATION])
    return folder


@pytest.fixture(scope="module")
def scratch(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scratch") / "copy"
    shutil.copytree(original, folder)
    return folder


def restore(original: Path, folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(original, folder)


def found_by(folder: Path) -> list[str]:
    """What verification says; a refusal in one line is a finding too, anything else is a bug."""
    try:
        return verify(folder)
    except ProtocolError as error:
        assert "\n" not in str(error)
        return [str(error)]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    else:
        yield path


def objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        yield path
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from objects(item, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def another(value: Any, data: st.DataObject) -> Any:
    """A different value, as often as not the smallest difference there is."""
    choices: list[Any] = [None, "", 0, 1.5, True, [], {}, "PASS"]
    if isinstance(value, bool):
        choices += [not value, int(value)]
    elif isinstance(value, int):
        choices += [value + 1, -value - 1, float(value), str(value)]
    elif isinstance(value, float):
        choices += [math.nextafter(value, math.inf), -value, value * 2 + 1, float("nan"), float("inf")]
    elif isinstance(value, str):
        choices += [value + " ", value[:-1], value.upper(), value + "\u00a0"]
    return data.draw(st.sampled_from([c for c in choices if json.dumps(c) != json.dumps(value)]))


def edit_json(path: Path, data: st.DataObject) -> str:
    value = json.loads(path.read_text())
    kind = data.draw(st.sampled_from(["leaf", "leaf", "leaf", "drop", "add", "text"]))
    if kind == "leaf":
        where = data.draw(st.sampled_from(list(leaves(value))))
        holder = at(value, where[:-1])
        holder[where[-1]] = another(holder[where[-1]], data)
    elif kind == "drop":
        where = data.draw(st.sampled_from([p for p in objects(value) if at(value, p)]))
        holder = at(value, where)
        del holder[data.draw(st.sampled_from(sorted(holder))) if isinstance(holder, dict) else -1]
    elif kind == "add":
        where = data.draw(st.sampled_from(list(objects(value))))
        holder = at(value, where)
        if isinstance(holder, dict):
            holder["extra"] = data.draw(st.sampled_from([None, 0, "x"]))
        else:
            holder.append(copy.deepcopy(holder[-1]) if holder else 0)
    else:
        text = path.read_text()
        layouts = [text + "\n", text + " ", text.replace("\n", "\r\n"), text.strip(), json.dumps(value)]
        layouts += ["\ufeff" + text, text.replace('": ', '":  ', 1)]
        changed = data.draw(st.sampled_from(layouts))
        path.write_bytes(changed.encode())
        return f"{path.name}: layout"
    path.write_text(json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False) + "\n")
    return f"{path.name}: {kind} {where}"


def edit_table(path: Path, data: st.DataObject) -> str:
    table = pq.read_table(path)
    kind = data.draw(st.sampled_from(["cell", "cell", "cell", "row", "column", "swap rows", "double"]))
    if kind == "column":
        name = data.draw(st.sampled_from(table.column_names))
        pq.write_table(table.drop_columns([name]), path, compression="zstd", row_group_size=1 << 20)
        return f"{path.name}: no column {name}"
    row = data.draw(st.integers(0, len(table) - 1))
    if kind == "row":
        table = pa.concat_tables([table.slice(0, row), table.slice(row + 1)])
    elif kind == "double":
        table = pa.concat_tables([table.slice(0, row + 1), table.slice(row)])
    elif kind == "swap rows":
        order = np.arange(len(table))
        other = data.draw(st.integers(0, len(table) - 1))
        order[[row, other]] = order[[other, row]]
        if table.take(order).equals(table):
            return "nothing"
        table = table.take(order)
    else:
        name = data.draw(st.sampled_from(table.column_names))
        values = table[name].to_pylist()
        value = values[row]
        if isinstance(value, list):
            values[row] = [*value, *value] if value else [1]
        elif isinstance(value, bool):
            values[row] = not value
        elif isinstance(value, int):
            values[row] = value - 1 if data.draw(st.booleans()) and value else value + 1
        elif isinstance(value, float):
            values[row] = value * 1.01 if value and math.isfinite(value) else 1.0
        else:
            values[row] = (value or "") + "x" if pa.types.is_string(table[name].type) else 1
        i = table.column_names.index(name)
        table = table.set_column(i, table.schema.field(i), pa.array(values, table[name].type))
    pq.write_table(table, path, compression="zstd", row_group_size=1 << 20)
    return f"{path.name}: {kind} {row}"


def mutate(folder: Path, data: st.DataObject) -> str:
    """One change somewhere in the folder."""
    kind = data.draw(st.sampled_from(["edit"] * 6 + ["bytes", "cut", "delete", "swap", "empty", "extra", "folder"]))
    name = data.draw(st.sampled_from(NAMES))
    path = folder / name
    if kind == "edit":
        return edit_json(path, data) if name.endswith(".json") else edit_table(path, data)
    if kind == "bytes":
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
    elif kind == "cut":
        content = bytearray(path.read_bytes())
        path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    elif kind == "delete":
        path.unlink()
    elif kind == "swap":
        other = folder / data.draw(st.sampled_from([n for n in NAMES if n != name]))
        one, two = path.read_bytes(), other.read_bytes()
        path.write_bytes(two)
        other.write_bytes(one)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "extra":
        (folder / RAW / "more.parquet").write_bytes(b"")
    else:
        path.unlink()
        path.mkdir()
    return f"{name}: {kind}"


def test_an_untouched_folder_verifies(original: Path, tmp_path: Path) -> None:
    assert verify(original) == []
    shutil.copytree(original, tmp_path / "moved")
    assert verify(tmp_path / "moved") == []


@settings(
    max_examples=50, deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(st.data())
def test_every_single_change_is_found(original: Path, scratch: Path, data: st.DataObject) -> None:
    restore(original, scratch)
    what = mutate(scratch, data)
    before = {p.relative_to(original): p.read_bytes() for p in original.rglob("*") if p.is_file()}
    after = {p.relative_to(scratch): p.read_bytes() for p in scratch.rglob("*") if p.is_file()}
    assert bool(found_by(scratch)) == (before != after), what


@settings(
    max_examples=12, deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(st.data())
def test_edited_numbers_are_found_even_with_their_digest_renewed(
    original: Path, scratch: Path, data: st.DataObject
) -> None:
    """Who edits the violations of a placement and renews the digest is found by recomputation."""
    restore(original, scratch)
    path = scratch / RAW / "placements.parquet"
    table = pq.read_table(path)
    arms = np.array(table["arm"].to_pylist())
    row = int(data.draw(st.sampled_from(np.flatnonzero(np.isin(arms, ["policy", "no-sync", "uniform"])).tolist())))
    violations = table["violations"].to_pylist()
    violations[row] = [violations[row][0] + data.draw(st.sampled_from([-5, -1, 1, 7]))]
    i = table.column_names.index("violations")
    table = table.set_column(i, table.schema.field(i), pa.array(violations, table["violations"].type))
    pq.write_table(table, path, compression="zstd", row_group_size=1 << 20)
    certificate = json.loads((scratch / CERTIFICATE).read_text())
    certificate["files"]["placements.parquet"] = files.sha256(path)
    files.write_text(scratch / CERTIFICATE, files.canonical_json(certificate))
    found = found_by(scratch)
    assert found and not any("SHA-256" in line for line in found)
    assert any(line.startswith("claims[0].") for line in found)


def test_a_better_verdict_is_named(original: Path, scratch: Path) -> None:
    restore(original, scratch)
    certificate = json.loads((scratch / CERTIFICATE).read_text())
    own, certificate["tier"]["number"] = certificate["tier"]["number"], 3
    certificate["claims"][0]["envelope"]["gain_pp"] += 1
    files.write_text(scratch / CERTIFICATE, files.canonical_json(certificate))
    found = verify(scratch)
    assert len(found) == 2
    assert found[1] == f"tier.number: stated 3, recomputed {own}" and found[0].startswith(
        "claims[0].envelope.gain_pp: "
    )


@pytest.mark.parametrize("islands", [0, -1, 10**400])
def test_a_fleet_of_nobody_is_a_finding(original: Path, scratch: Path, islands: int) -> None:
    restore(original, scratch)
    asked = json.loads((scratch / RAW / evidence.ASKED).read_text())
    asked["regimes"][0]["islands"] = islands
    files.write_text(scratch / RAW / evidence.ASKED, files.canonical_json(asked))
    assert found_by(scratch)


def test_an_edited_certificate_is_not_compared(original: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.cli.compare.all_wrong", recomputed)  # its rows were made by hand, from no root
    restore(original, scratch)
    _trusted(scratch)
    certificate = json.loads((scratch / CERTIFICATE).read_text())
    certificate["claims"][0]["envelope"]["gain_pp"] += 1
    files.write_text(scratch / CERTIFICATE, files.canonical_json(certificate))
    with pytest.raises(BadInput, match="its raw files do not bear out"):
        _trusted(scratch)


def test_a_calibration_is_recomputed_from_its_own_rows(original: Path, scratch: Path) -> None:
    """Who makes the server slower under merges, and judges again, is found by the rows of the calibration."""
    restore(original, scratch)
    asked = json.loads((scratch / RAW / evidence.ASKED).read_text())
    asked["regimes"][0]["sidecar"]["calibration"]["runs"][0]["exposed_p95_ms"] *= 1.5
    write_folder(scratch, Head.model_validate(asked), evidence.read(scratch / RAW), [CALIBRATION])
    assert verify(scratch) == [f"{calibration.carried_as('vllm-cpu')}, runs: the certificate states another"]
    asked["regimes"][0]["sidecar"] = json.loads((original / RAW / evidence.ASKED).read_text())["regimes"][0]["sidecar"]
    asked["regimes"][0]["sidecar"]["decode_slowdown"] += 1
    write_folder(scratch, Head.model_validate(asked), evidence.read(scratch / RAW), [CALIBRATION])
    assert [line.split(":")[0] for line in verify(scratch)] == ["sidecar vllm-cpu.decode_slowdown"]


def test_a_changed_question_is_named(original: Path, scratch: Path) -> None:
    restore(original, scratch)
    certificate = json.loads((scratch / CERTIFICATE).read_text())
    certificate["settings"]["alpha"] = 0.5
    files.write_text(scratch / CERTIFICATE, files.canonical_json(certificate))
    assert "settings.alpha: stated 0.5, recomputed 0.05" in verify(scratch)


def test_what_is_missing_is_named(original: Path, scratch: Path, tmp_path: Path) -> None:
    restore(original, scratch)
    (scratch / RAW / "requests.parquet").unlink()
    assert f"{RAW}/requests.parquet: missing" in verify(scratch)
    shutil.rmtree(scratch / RAW)
    assert len([line for line in verify(scratch) if line.endswith("missing")]) == 8
    with pytest.raises(BadInput, match="no such file"):
        verify(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"{}", b'{"schema": "x", "schema_version": 1}', b"\xff", b"[" * 100_000,
     b'{"schema": "diloco-protocol/certificate", "schema_version": 2}', b'{"p": NaN}'],
)  # fmt: skip
def test_a_broken_certificate_is_one_line(original: Path, scratch: Path, content: bytes) -> None:
    restore(original, scratch)
    (scratch / CERTIFICATE).write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read_certificate(scratch)
    assert CERTIFICATE in str(caught.value) and "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, -0.0, 1.0, 2.5]) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(JSON, JSON)
def test_differences_are_those_of_the_text(one: object, other: object) -> None:
    equal = files.canonical_json(one) == files.canonical_json(other)
    assert (list(differences(one, other)) == []) == equal


def test_differences_name_the_place() -> None:
    one = {"a": [1, {"b": 2}], "c": 1, "d": None}
    other = {"a": [1, {"b": 3}], "d": 0, "e": 1}
    assert list(differences(one, other)) == [
        "a[1].b: stated 2, recomputed 3",
        "c: cannot be recomputed",
        "d: stated null, recomputed 0",
        "e: is not in the certificate",
    ]
    assert list(differences([1], [1, 2])) == [": stated [1], recomputed [1, 2]"]


def test_not_a_number_in_what_was_asked_is_a_finding(original: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(original, folder)
    path = folder / RAW / evidence.ASKED
    asked = json.loads(path.read_text())
    asked["settings"]["min_effect_pp"] = math.nan
    path.write_text(json.dumps(asked))
    assert any(line.startswith(f"{RAW}/{evidence.ASKED}, settings.min_effect_pp: ") for line in verify(folder))


# Fields of the wrong kind -----------------------------------------------------------------------------------------

MISTYPED: list[tuple[tuple[Any, ...], Any]] = [
    (("verdict",), "MAYBE"), (("tier", "number"), 7), (("tier", "number"), "1"), (("tier", "upper_bound"), 0),
    (("claims", 0, "gates", 0, "gate"), "G9"), (("claims", 0, "gates", 0, "status"), "fine"),
    (("claims", 0, "envelope", "gain_pp"), "2.5"), (("claims", 0, "envelope", "tests", 0, "p"), "0.01"),
    (("claims", 0, "envelope", "n_seeds"), 1.5), (("regimes", 0, "corridor", "h_min"), None),
    (("regimes", 0, "seeds", 0, "merges"), "3"), (("settings", "draws"), True), (("contender", "kind"), "oracle"),
    (("sentence",), None), (("regimes", 0, "corridor", "h_mid"), 3), (("settings", "extra"), 1),
]  # fmt: skip


def mistype(value: Any, path: tuple[Any, ...], to: Any) -> None:
    at(value, path[:-1])[path[-1]] = to


@pytest.mark.parametrize(("path", "to"), MISTYPED)
def test_a_field_of_another_kind_is_named_by_both_readers(
    original: Path, scratch: Path, path: tuple[Any, ...], to: Any
) -> None:
    restore(original, scratch)
    certificate = json.loads((scratch / CERTIFICATE).read_text())
    mistype(certificate, path, to)
    files.write_text(scratch / CERTIFICATE, files.canonical_json(certificate))
    field = ".".join(map(str, path))
    assert any(field in line for line in verify(scratch))
    with pytest.raises(BadInput, match=field.replace(".", r"\.")) as caught:
        read_certificate(scratch)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("path", "to"), [m for m in MISTYPED if m[0][0] in ("regimes", "settings", "contender")])
def test_a_question_of_another_kind_is_named(original: Path, scratch: Path, path: tuple[Any, ...], to: Any) -> None:
    restore(original, scratch)
    if path[:3] == ("regimes", 0, "seeds"):
        return  # no part of what was asked
    asked = json.loads((scratch / RAW / evidence.ASKED).read_text())
    mistype(asked, path, to)
    files.write_text(scratch / RAW / evidence.ASKED, files.canonical_json(asked))
    where = f"{RAW}/{evidence.ASKED}, {'.'.join(map(str, path))}"
    assert any(line.startswith(where) for line in verify(scratch))


# The schema ------------------------------------------------------------------------------------------------------


def test_the_schema_beside_the_code_is_the_one_that_is_generated() -> None:
    """When a field was changed on purpose, this file run with tests/builders on PYTHONPATH writes it anew."""
    assert SCHEMA.read_text("utf-8") == files.canonical_json(json_schema())


def test_the_schema_holds_a_certificate_and_not_a_mistyped_one(original: Path) -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    validator.check_schema(json_schema())
    certificate = json.loads((original / CERTIFICATE).read_text())
    assert list(validator.iter_errors(certificate)) == []
    for path, to in MISTYPED:
        other = copy.deepcopy(certificate)
        mistype(other, path, to)
        assert list(validator.iter_errors(other)), path


if __name__ == "__main__":
    files.write_text(SCHEMA, files.canonical_json(json_schema()))
