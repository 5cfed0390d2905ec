"""Certificates that somebody forged who knows the format: found offline, or of a kind that the documentation lists."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def forgeries() -> ModuleType:
    spec = importlib.util.spec_from_file_location("forgeries", ROOT / "benchmarks" / "forgeries.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def base(forgeries: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("forged")
    made = forgeries.Base(folder, str(folder / "forged.toml"), 3, False, None)
    made.toml = str(folder / "forged.toml")
    return made


def test_kinds_that_need_a_rerun_are_listed_and_no_others(forgeries: ModuleType) -> None:
    told = (ROOT / "docs" / "security.md").read_text()
    rows = [
        line for line in told.splitlines() if line.startswith("| ") and line.endswith(("`--rerun` |", "registration |"))
    ]
    assert len(rows) == len(forgeries.NEEDS_RERUN), rows
    for kind in forgeries.NEEDS_RERUN:
        assert any(row.startswith(f"| {kind}") and f"| {forgeries.KINDS[kind][1]} | 0 |" in row for row in rows), kind
    assert sum(n for _, n, _ in forgeries.KINDS.values()) == 200


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("control costs raised", "violations, counted"),
        ("policy's late requests made quick", "rows of the policy, request"),
        ("a seed left out", "trace_digest: stated"),
        ("said to be fresh", "by digest, registration and nonce"),
        ("confinement polished", "contender.confinement"),
        ("scheduler renamed", None),
    ],
)
def test_some_of_them(forgeries: ModuleType, base: object, tmp_path: Path, kind: str, words: str | None) -> None:
    line = forgeries.found_in(base, forgeries.KINDS[kind][0](base, np.random.default_rng(5)), tmp_path / "out")
    assert (line is None) == (words is None) and (words or "") in (line or ""), line


def test_an_honest_one_passes(forgeries: ModuleType, base: object, tmp_path: Path) -> None:
    assert forgeries.found_in(base, (base.head, base.evidence), tmp_path / "out") is None  # type: ignore[attr-defined]


@pytest.mark.slow
def test_two_hundred_of_them(forgeries: ModuleType) -> None:
    for kind, (caught, tried) in forgeries.main(200, None, 1).items():
        assert caught == (0 if kind in forgeries.NEEDS_RERUN else tried), kind
