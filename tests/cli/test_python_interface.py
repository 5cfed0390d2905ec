"""`import protocol`: a result as its folder holds it, refusals in one line, and the examples in the docstrings."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

import protocol
from protocol.certificate.reading import read_certificate
from protocol.cli import api
from protocol.cli.results import Result
from protocol.errors import BadInput

KEPT = Path(__file__).parents[2] / "docs" / "results" / "live-session"


def test_importing_it_loads_nothing_but_the_domain() -> None:
    code = (
        "import protocol, sys; print([m for m in sys.modules if m.startswith(('protocol.cli', 'adapters', 'reports'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_its_names() -> None:
    assert set(protocol.__all__) <= set(dir(protocol))
    assert all(getattr(protocol, name) is getattr(api, name) for name in protocol.__all__)
    with pytest.raises(AttributeError, match="no attribute 'certfy'"):
        protocol.certfy  # noqa: B018


def test_a_kept_run() -> None:
    found, stated = protocol.load(KEPT), read_certificate(KEPT)
    assert (found.verdict, found.sentence) == (stated.verdict, stated.sentence)
    assert found.claims["gain_pp"].tolist() == [c.envelope.gain_pp for c in stated.claims]
    assert len(found.gates) == sum(len(g.checks) for c in stated.claims for g in c.gates)
    assert found.seeds["policy_pp"].tolist() == [row.policy for c in stated.claims for row in c.envelope.per_seed]
    shown = found._repr_html_()
    assert stated.verdict in shown and "<table>" in shown and repr(found).startswith(f"<{stated.verdict}: ")
    with pytest.raises(BadInput, match="placements.parquet: found no such file"):
        _placements(found)


def _placements(found: Result) -> object:
    return found.placements


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"seeds": 0}, "seeds: found 0; expected a whole number from 1 on"),
        ({"alpha": 2}, "alpha: found 2; expected 0.0001 to 0.5"),
        ({"min_effect_pp": float("nan")}, "min_effect_pp: found nan"),
        ({"regimes": "ordinary"}, "regimes: found 'ordinary'; expected a list"),
        ({"draws": "many"}, "--draws: found 'many'"),
        ({"seed": 1, "fresh_seed": True}, "--fresh-seed"),
        ({"jobs": 0}, "jobs: found 0"),
    ],
)
def test_refusals_are_one_line(tmp_path: Path, asked: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        protocol.certify("fixed-h-512", out=tmp_path / "run", quiet=True, **asked)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        protocol.load(tmp_path)


def test_the_examples_in_the_docstrings() -> None:
    found = doctest.testmod(api, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted >= 5 and found.failed == 0
