"""The one sentence that the evidence licenses, for every standing and tier."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from server_runs import server_head
from strategies import FunctionSource, head_for, quiet, ran, setting

from protocol.certificate.assess import assess
from protocol.certificate.model import TIERS, Certificate, Claim, Head, TierPart, plain
from protocol.certificate.sentence import sentence
from protocol.stats.gains import Standing

NAMES = ("first", "second", "third")


@cache
def passed() -> Certificate:
    return assess(head_for(FunctionSource(quiet), [setting()]), ran())


def claim(regime: str, tier: int = 1, gain: float = 2.0, standing: str = Standing.SHOWN, **changes: Any) -> Claim:
    """A claim that passed, or failed G3 in this way."""
    values = plain(passed().claims[0])
    won = standing == Standing.SHOWN
    gates = [{**g, "status": "failed" if g["gate"] == "G3" and not won else "passed"} for g in values["gates"]]
    own = {
        "gain_pp": gain, "interval_pp": (gain - 0.5, gain + 0.75), "load_gain_pp": gain / 2,
        "load_interval_pp": (0.25, None), "standing": str(standing),
    }  # fmt: skip
    return Claim.model_validate({
        **values, "regime": regime, "verdict": "PASS" if won else "FAIL", "gates": gates, "reason": "why",
        "tier": plain(TierPart(number=tier, name=TIERS[tier], upper_bound=False)),
        "envelope": {**values["envelope"], **own, **changes},
    })  # fmt: skip


def head(*names: str, changes: dict[str, Any] | None = None, **settings: Any) -> Head:
    values = head_for(FunctionSource(quiet), [setting(name) for name in names or NAMES], **settings).plain()
    return Head.model_validate({**values, **(changes or {})})


def calibrated(asked: Head, **servers: str) -> Head:
    values = asked.plain()
    for regime in values["regimes"]:
        if regime["name"] in servers:
            stated = {
                "server": servers[regime["name"]], "served_model": "tiny, 4 layers, random weights",
                "host": {"cores": 2, "processor": "AMD EPYC"}, "date": "2026-01-02", "runs": [],
            }  # fmt: skip
            regime["sidecar"] = {"name": "fitted", "calibrated": True, "calibration": stated}
    return Head.model_validate(values)


@pytest.mark.parametrize(
    ("unconfined", "stated", "told"),
    [
        (False, {"sound": True, "gaps": []}, None),
        (True, {"sound": True, "gaps": ["clocks: all are real"]}, None),
        (True, {"sound": False, "gaps": ["reads of files are not confined"]},
         "Its process was not confined: reads of files are not confined."),
        (True, None, "Its process was not confined: what held of it is not known."),
    ],
)  # fmt: skip
def test_what_was_not_confined_is_repeated(unconfined: bool, stated: dict[str, Any] | None, told: str | None) -> None:
    asked = head("first", unconfined=unconfined).plain()
    asked["contender"] |= {} if stated is None else {"confinement": stated}
    text = says([claim("first")], Head.model_validate(asked))
    assert (told in text) if told else "confined" not in text


def says(claims: Sequence[Claim], asked: Head | None = None) -> str:
    verdict = "PASS" if any(c.verdict == "PASS" for c in claims) else "FAIL"
    return sentence(asked or head(*(c.regime for c in claims)), verdict, claims)


def test_a_gain_names_regime_slo_both_gains_their_intervals_and_the_minimum_effect() -> None:
    assert says([claim("first")], head("first", min_effect_pp=0.5)) == (
        "toy-scheduler beats matched random placement of the same number of merges in a repeatable benchmark on the "
        "uncalibrated simulated sidecar toy: first (2.00 pp [1.50, 2.75] fewer e2e<=1000ms violations; 1.00 pp "
        "[0.25, ?] from following the load). Each is shown, one-sided, to be more than 0.5 pp, on public traces."
    )


def test_claims_stand_by_tier_largest_gain_first() -> None:
    asked = calibrated(head(), second="vLLM at A", third="vLLM at B")
    text = says([claim("first", 1, 9.0), claim("second", 2, 1.0), claim("third", 2, 3.0)], asked)
    strong, weak = text.split("toy-scheduler beats ")[1:]
    assert strong.startswith(
        "matched random placement of the same number of merges under a sidecar model calibrated on "
    )
    on = "serving tiny, 4 layers, random weights on 2 cores of AMD EPYC at 2026-01-02"
    assert f"vLLM at A {on} and vLLM at B {on}" in strong
    assert strong.index("third (3.00") < strong.index("second (1.00") and "first" not in strong
    assert (
        "repeatable benchmark on the uncalibrated simulated sidecar toy: first (9.00" in weak and "second" not in weak
    )


def test_only_the_servers_of_what_was_won_are_named() -> None:
    asked = calibrated(head("first", "second"), first="vLLM at A", second="vLLM at B")
    text = says([claim("first", 2), claim("second", 1, standing=Standing.NOT_CHANCE)], asked)
    assert "vLLM at A" in text and "vLLM at B" not in text and text.endswith("Nothing is licensed for second.")


@pytest.mark.parametrize(
    ("standing", "told", "gains"),
    [
        (Standing.NOT_CHANCE, "with the same number of merges, its placement was not shown to beat matched random "
         "placement in first", False),
        (Standing.NOT_LOAD, "it beats matched random placement, but was not shown to follow the load in first", True),
        (Standing.BELOW_MINIMUM, "it was not shown to gain more than 0.5 pp, although it gains something in first",
         True),
    ],
)  # fmt: skip
def test_three_ways_to_fail_are_three_sentences(standing: Standing, told: str, gains: bool) -> None:
    text = says([claim("first", standing=standing)], head("first", min_effect_pp=0.5))
    assert text.startswith(f"Nothing is licensed about toy-scheduler: {told}")
    assert ("2.00 pp [1.50, 2.75]" in text) == gains and text.endswith(".")


def test_regimes_that_fail_in_different_ways_are_told_apart() -> None:
    failed = (Standing.NOT_LOAD, Standing.NOT_CHANCE, Standing.NOT_LOAD)
    text = says([claim(name, standing=s) for name, s in zip(NAMES, failed, strict=True)])
    chance, load = text.split("; it beats")
    assert chance.endswith("in second") and "follow the load in first (2.00 pp [1.50, 2.75] fewer" in load
    assert " from following the load) and third (2.00 pp" in load


def test_another_gates_failure_comes_before_placement() -> None:
    lost = claim("first")
    gates = tuple(g.model_copy(update={"status": "failed"}) if g.gate == "G4" else g for g in lost.gates)
    lost = lost.model_copy(update={"gates": gates, "verdict": "FAIL", "reason": "G4 training progress: fewer steps"})
    told = says([claim("second", standing=Standing.NOT_CHANCE), lost], head("second", "first"))
    assert told == "Nothing is licensed about toy-scheduler: G4 training progress: fewer steps."


def test_broken_integrity_comes_before_everything() -> None:
    good = claim("first")
    gates = tuple(g.model_copy(update={"status": "failed"}) if g.gate == "G0" else g for g in good.gates)
    broken = good.model_copy(update={"regime": "second", "gates": gates, "reason": "G0 integrity: it looked ahead"})
    text = sentence(head("first", "second"), "FAIL", [good, broken])
    assert text == "Nothing is licensed about toy-scheduler: G0 integrity: it looked ahead."


def test_an_undecided_run_says_what_it_saw_and_could_have_shown() -> None:
    undecided = claim("first", n_seeds=5, attainable_p=0.03125).model_copy(
        update={"verdict": "INCONCLUSIVE", "reason": "G3: 5 seeds, fewer than 8"}
    )
    text = sentence(head("first"), "INCONCLUSIVE", [undecided])
    assert text == (
        "Nothing is licensed about toy-scheduler yet: G3: 5 seeds, fewer than 8. Seen, not shown: +2.00 pp of gain in "
        "e2e<=1000ms over 5 seeds; the smallest p that so many could give is 0.0312."
    )


@pytest.mark.parametrize("root", ["public", "given", "fresh"])
@pytest.mark.parametrize("trace", [None, {"file": "azure.csv"}])
def test_public_traces_are_said(root: str, trace: dict[str, str] | None) -> None:
    """A root that somebody chose may have been tuned on; a real trace has been there for all to see."""
    values = head("first", root=root).plain()
    if trace is not None:
        values["regimes"][0]["trace"] = trace
    text = says([claim("first")], Head.model_validate(values))
    assert ("on public traces" in text) == (root != "fresh" or trace is not None)


@pytest.mark.parametrize(
    ("kind", "starts"),
    [("scheduler", "toy-scheduler beats"), ("planner", "As an upper bound that no deployable scheduler may claim, "),
     ("recorded", "As an upper bound, because nothing shows that this recorded schedule did not know its future, ")],
)  # fmt: skip
def test_who_may_know_the_future_claims_an_upper_bound(kind: str, starts: str) -> None:
    contender = {**head().plain()["contender"], "kind": kind}
    assert says([claim("first")], head("first", changes={"contender": contender})).startswith(starts)


@pytest.mark.parametrize(("kind", "trace"), [("recorded", None), ("recorded", {"file": "a.csv"}), ("scheduler", None)])
def test_a_log_in_generated_load_cannot_be_shown_to_follow_it(kind: str, trace: dict[str, Any] | None) -> None:
    values = head("first").plain()
    values["contender"]["kind"] = kind
    if trace is not None:
        values["regimes"][0]["trace"] = trace
    text = says([claim("first", standing=Standing.NOT_LOAD)], Head.model_validate(values))
    assert ("nothing can be told of following the load there" in text) == (kind == "recorded" and trace is None)


@pytest.mark.parametrize(
    ("back_end", "tier", "part"),
    [("real", 3, "beats matched random placement of the same number of merges in replay on toy 1.0: toy (2.00"),
     ("live", 4, "improves sync-excess SLO violations on toy 1.0 in live operation over matched random placement: ")],
)  # fmt: skip
def test_a_real_server_is_named(back_end: str, tier: int, part: str) -> None:
    asked = server_head(back_end)
    assert part in says([claim("toy", tier)], asked)
    simulated = says([claim("toy", tier, load_gain_simulated=True)], asked)
    assert "from following the load in simulation)" in simulated
    lost = says([claim("toy", tier, standing=Standing.NOT_CHANCE)], asked)
    where = {"real": "replay", "live": "live operation"}[back_end]
    assert lost.endswith(f"matched random placement in toy in {where} on toy 1.0.")


def test_a_gain_without_a_load_gain_says_nothing_of_it() -> None:
    text = says([claim("first", load_gain_pp=None, load_interval_pp=None)])
    assert "from following the load" not in text and "fewer e2e<=1000ms violations)" in text


def test_the_level_is_said_where_it_is_laxer() -> None:
    assert says([claim("first")], head("first", alpha=0.1)).endswith("This was judged at level 0.1, not at 0.05.")
    assert "level" not in says([claim("first")], head("first", alpha=0.01))
