"""Synthetic families, live sessions and predicted ones: their truths are what they say."""

from __future__ import annotations

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from protocol.cli import selftest as command
from protocol.errors import BadInput
from protocol.selftest import sessions, synthetic
from protocol.selftest.sessions import Live
from protocol.selftest.synthetic import FAMILIES, Family


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_the_true_gains_of_a_family(family: Family) -> None:
    """Averages over 300 certificates of 20 seeds: over chance and by load both the declared 2 pp."""
    rng = np.random.default_rng(1)
    over, follow = [], []
    for _ in range(300):
        draws, cost = family.costs(rng, 20, 19, 2.0)
        own = np.diagonal(cost)
        over.append((draws.mean(axis=1) - own).mean())
        follow.append(((cost.sum(axis=1) - own) / 19 - own).mean())
    for found in (over, follow):
        assert np.mean(found) == pytest.approx(2.0, abs=4 * np.std(found) / 300**0.5)


def test_every_shape_is_standard() -> None:
    rng = np.random.default_rng(2)
    for name, shape in synthetic.SHAPES.items():
        sample = shape(rng, (400_000,))
        assert abs(sample.mean()) < 0.02, name
        if name != "Pareto 2.2":  # its fourth moment does not exist
            assert sample.std() == pytest.approx(1.0, abs=0.1), name


def test_live_blocks_by_hand() -> None:
    """Rates N 10, P 25, N 12, R 21, N 14: P over 11 is 14, R over 13 is 8."""
    live = Live("by hand")
    rates = np.array([[10.0, 25.0, 12.0, 21.0, 14.0]])
    assert live.excess(rates, "P") == pytest.approx([14.0]) and live.excess(rates, "R") == pytest.approx([8.0])
    # The published order reads both off one line from 10 to 16: 12 under P and 14 under R.
    old = Live("old", sessions.PUBLISHED)
    rates = np.array([[10.0, 25.0, 21.0, 16.0]])
    assert old.excess(rates, "P") == pytest.approx([13.0]) and old.excess(rates, "R") == pytest.approx([7.0])


def test_carryover_favours_the_policy_only_in_the_published_order() -> None:
    def bias(live: Live) -> float:
        gains = []
        for r in range(400):
            rates = live.rates(np.random.default_rng(r))
            gains.append((live.excess(rates, "R") - live.excess(rates, "P")).mean())
        return float(np.mean(gains))

    assert bias(Live("published", sessions.PUBLISHED, 3.0)) == pytest.approx(2.0, abs=0.25)  # 2 c / 3
    assert bias(Live("balanced", carryover_pp=3.0)) == pytest.approx(-1.5, abs=0.25)  # - c / 2
    assert bias(Live("drift", drift_pp=10.0)) == pytest.approx(0.0, abs=0.25)
    assert bias(Live("gain", gain_pp=3.0)) == pytest.approx(3.0, abs=0.25)


def test_replayed_sessions_correlate_as_declared() -> None:
    rng = np.random.default_rng(3)
    _, real, _, drawn, elsewhere = sessions.replayed(rng, 400, 20, 0.82, 1.5, 3.0)
    within = [real - real.mean(axis=1, keepdims=True), drawn - drawn.mean(axis=1, keepdims=True)]
    assert np.corrcoef(within[0].ravel(), within[1].ravel())[0, 1] == pytest.approx(0.82, abs=0.03)
    assert elsewhere.mean() == pytest.approx(3.0, abs=0.5)


def test_five_claims_at_their_true_gain() -> None:
    found = synthetic.at_the_true_gain(1, FAMILIES[0], 25, 8, 9)
    assert all({"certified", "any of five", "gain covered", "load gain covered", "t covers"} <= set(f) for f in found)
    assert sum(f["any of five"] for f in found) <= 5 and sum(f["gain covered"] for f in found) >= 20


def test_the_command(tmp_path) -> None:  # type: ignore[no-untyped-def]
    options = ["selftest", "--quick", "--world", "live", "--nulls", "25", "--jobs", "1", "--out", str(tmp_path)]
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.output
    assert "every bar held" in done.output and "--world live --nulls 25 --seed 20260601" in done.output
    text = (tmp_path / "selftest.md").read_text()
    assert "carryover 2 pp" in text and "Every bar is held." in text and "minutes" in text
    counts = (tmp_path / "selftest.csv").read_text().splitlines()
    assert counts[0].startswith('"world","family","design","effect_pp","what","count","n"') and len(counts) == 34
    assert isinstance(CliRunner().invoke(app, ["selftest", "--world", "moon"]).exception, BadInput)
