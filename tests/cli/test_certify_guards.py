"""What `certify` refuses before any work, and what it does not take over from an unfinished run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from strategies import FunctionSource, plan_of, quiet, ran, setting

from adapters.traces.readers import Reading
from protocol.cli.certify import Asked, Sidecar
from protocol.cli.groups import Declared, Draws, Judging, Learning, Output, Server, Training, Worlds
from protocol.cli.settings import Overrides, refuse_endless, settings_for
from protocol.cli.verify import _tell
from protocol.errors import BadInput
from protocol.evidence.model import Evidence
from protocol.replay.replay import UNIFORM


def test_declared_variables() -> None:
    assert Declared(["B=2=3", "A="]).variables == (("A", ""), ("B", "2=3")) and Declared().variables == ()
    for wrong in (["A"], ["A=1", "A=2"]):
        with pytest.raises(BadInput, match="--environment: found 'A.*expected NAME=VALUE, each name once"):
            _ = Declared(wrong).variables


@pytest.mark.parametrize("text", ["0", "-1", "1000001", "1" * 5000, "x", "", "²"])
def test_draws_have_a_limit(text: str) -> None:
    with pytest.raises(BadInput, match="--draws: found .*expected a whole number from 1 to 1000000, or auto"):
        Draws(text)
    assert [Draws(t).number(False) for t in ("1", "1000000", "auto")] == [1, 1_000_000, 999]


def test_campaigns_without_end_are_refused_with_their_number() -> None:
    settings, _ = settings_for([], [], Reading(), 1, Overrides())
    refuse_endless(settings, 999)
    with pytest.raises(BadInput, match=r"found .*e\+1[3-9] requests to replay.*expected at most 1e\+13"):
        refuse_endless([replace(s, n_seeds=10_000) for s in settings], 1_000_000)
    refuse_endless([setting()], 999)  # of another kind of world
    with pytest.raises(BadInput, match="requests to replay"):
        refuse_endless([setting()], 10**12)


def test_kept_seeds_are_tried_before_they_are_taken_over(tmp_path: Path) -> None:
    """Whoever writes into an unfinished run's folder could make any evidence up."""
    asked = Asked(
        "x.py", Worlds(), Draws(), Judging(), Learning(), Training(), Sidecar(), Server(), Output(tmp_path / "out"), 1
    )
    world, plan = setting(n_seeds=3), plan_of(FunctionSource(quiet))
    kept: dict[tuple[str, int], Evidence] = {(e.regime, e.seed): e for e in ran(n_seeds=3)[:1]}
    asked._check_kept(plan, ([world], []), kept)
    asked._check_kept(plan, ([world], []), {})
    e = kept["toy", 0]
    dearer = np.ceil(e.placed[UNIFORM].violations * 1.25).astype(np.int64)
    kept["toy", 0] = e.with_placed(UNIFORM, replace(e.placed[UNIFORM], violations=dearer))
    with pytest.raises(BadInput, match=r"out/\.partial: found a kept seed 0 of toy that a fresh run does not bear out"):
        asked._check_kept(plan, ([world], []), kept)


def test_what_a_certificate_says_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _tell('differs: contender.name: stated "\x1b[2J\u202eSSAP\nverified: PASS"')
    assert capsys.readouterr().out == 'differs: contender.name: stated "U+001B[2JU+202ESSAP verified: PASS"\n'
