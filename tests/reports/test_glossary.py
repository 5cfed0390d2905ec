"""Every term of certificate, tables and report is in the glossary, once."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from sample_certificate import build
from server_runs import judged, session, sound
from strategies import FunctionSource, head_for, quiet, ran, setting

from protocol.certificate import model
from protocol.certificate.assess import assess
from protocol.certificate.model import Certificate
from protocol.gates.result import Status
from reports import tables

ROOT = Path(__file__).parents[2]


def rows() -> list[list[str]]:
    lines = (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert table[0] == "| term | meaning | unit | where |"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def names() -> list[str]:
    """A word that is also a field's name stands twice in its row."""
    return [name for row in rows() for name in {part.strip("`") for part in row[0].split(" / ")}]


def unknown(terms: set[str]) -> list[str]:
    """Terms that are not there; a capital at the beginning of a heading is the same word."""
    known = {_plain(name) for name in names()}
    return sorted(term for term in terms if _plain(term) not in known)


def _plain(name: str) -> str:
    return name[:1].lower() + name[1:]


def test_every_row_is_whole_and_every_name_stands_once() -> None:
    assert all(len(row) == 4 and all(row) for row in rows())
    assert [name for name, count in Counter(names()).items() if count > 1] == []


def test_fields_of_a_certificate() -> None:
    """All of them, the claim's envelope, gates and checks among them."""
    fields: set[str] = set()
    seen: set[type[BaseModel]] = set()
    todo: list[object] = [Certificate]
    while todo:
        one = todo.pop()
        if isinstance(one, type) and issubclass(one, BaseModel) and one not in seen:
            seen.add(one)
            fields |= {field.alias or name for name, field in one.model_fields.items()}
            todo += [field.annotation for field in one.model_fields.values()]
        todo += get_args(one)
    assert {model.EnvelopePart, model.GatePart, model.CheckPart, model.SeedRow, model.Settings} <= seen
    assert unknown(fields) == []


def test_gates_and_checks() -> None:
    """Those that the gates' own code names, those of each tier's evidence, and those of kept certificates."""
    terms: set[str] = set()
    for path in (ROOT / "protocol" / "gates").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Check", "GateResult"):
                terms |= {a.value for a in node.args[:2] if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    made = [
        judged("real", list(sound()))[0],
        judged("live", list(session()))[0],
        assess(head_for(FunctionSource(quiet), [setting(n_seeds=10)]), list(ran())),
    ]
    for claim in (claim for certificate in made for claim in certificate.claims):
        terms |= {c.name.partition(" (")[0] for gate in claim.gates for c in gate.checks}
    for path in (ROOT / "docs" / "results").rglob("certificate.json"):
        for claim in json.loads(path.read_text("utf-8"))["claims"]:
            for gate in claim["gates"]:
                terms |= {gate["gate"], gate["title"], *(c["name"].partition(" (")[0] for c in gate["checks"])}
    assert {"A/A", "integrity", "passed"} <= terms
    assert unknown(terms - set(get_args(Status))) == []


def test_headings_of_tables() -> None:
    certificate, _ = build()
    made = [make(certificate) for make in (tables.claims_table, tables.gates_table, tables.seeds_table)]
    made.append(tables.islands_table({"regimes": []}))
    columns = [column for table in made for column in table.columns]
    assert unknown({column.heading for column in columns}) == []
    assert unknown({name for column in columns for name in column.raw}) == []


@pytest.mark.parametrize("page", ["report.html.j2", "parts.html.j2", "audit.html.j2", "leaderboard.html.j2"])
def test_headings_of_pages(page: str) -> None:
    text = (ROOT / "reports" / "templates" / page).read_text("utf-8")
    found = re.findall(r"<(?:th|h[2-4]|dt)\b[^>]*>([^<{]+)</", text)
    found += re.findall(r"<summary>([^<{(:]+?)\s*[<{(:]", text)
    assert found
    assert unknown(set(found)) == []
