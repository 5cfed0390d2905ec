"""The one sentence that the evidence licenses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from protocol.certificate.model import Claim, EnvelopePart, Head, Limits
from protocol.evidence.model import SHIFTED
from protocol.stats.gains import Standing

_BOUND = {
    "scheduler": "",
    "planner": "As an upper bound that no deployable scheduler may claim, ",
    "recorded": "As an upper bound, because nothing shows that this recorded schedule did not know its future, ",
}


def sentence(head: Head, verdict: str, claims: Sequence[Claim]) -> str:
    """Names regime, SLO, both gains with their intervals, the minimum effect, and whether the traces were public."""
    name, won = head.contender.name, [c for c in claims if c.verdict == "PASS"]
    broken = next((c for c in claims if c.status("G0") == "failed"), None)
    if broken is not None:
        return f"Nothing is licensed about {name}: {broken.reason}."
    if verdict == "INCONCLUSIVE":
        why = next(c for c in claims if c.verdict == "INCONCLUSIVE")
        return f"Nothing is licensed about {name}{_place(head)} yet: {why.reason}.{_seen(why)}"
    if verdict == "FAIL":
        return _failed(head, claims)
    said = [
        f"{name} {_beats(head, tier, mine)}: {_listed(map(_gains, sorted(mine, key=_gain, reverse=True)))}."
        for tier in sorted({c.tier.number for c in won}, reverse=True)
        for mine in [[c for c in won if c.tier.number == tier]]
    ]
    some = {c.regime for c in won}
    lost = [f"{c.regime} ({c.slo})" if c.regime in some else c.regime for c in claims if c.verdict != "PASS"]
    parts = [
        _BOUND[head.contender.kind] + said[0],
        *said[1:],
        f"Each is shown, one-sided, to be more than {head.settings.min_effect_pp:g} pp{_traces(head)}.",
        *([f"It is the best of {head.sweep.tried} variants on other traces."] if head.sweep is not None else []),
        *(["The session was watched, and might have ended with any block."] if head.settings.until_decided else []),
        *_unconfined(head),
        *_patterns(head, won),
        *([f"Nothing is licensed for {_listed(lost)}."] if lost else []),
        *_level(head),
    ]
    return " ".join(parts)


def _level(head: Head) -> Iterator[str]:
    if head.settings.alpha > 0.05:
        yield f"This was judged at level {head.settings.alpha:g}, not at 0.05."


def _patterns(head: Head, won: Sequence[Claim]) -> Iterator[str]:
    """Where schedules follow the load between traces, but may not within one.

    Whoever gives heavy traces one fixed pattern of merges and light ones another is told from a scheduler that waits
    for quiet moments by this control alone.
    """
    for claim in won:
        moved = next((c for c in claim.envelope.controls if c.name == SHIFTED), None)
        if moved is not None and moved.p is not None and moved.p > head.settings.alpha:
            yield (
                f"In {claim.regime} it was not shown to matter when its schedules run (moved in time: "
                f"p = {moved.p:.3f}); what follows the load there may be which pattern a trace gets."
            )


def _unconfined(head: Head) -> Iterator[str]:
    """What `--unconfined` let pass: nothing where the process was confined all the same."""
    stated = head.contender.described("confinement") or {}
    if head.settings.unconfined and not stated.get("sound"):
        gaps = "; ".join(map(str, stated.get("gaps") or ())) or "what held of it is not known"
        yield f"Its process was not confined: {gaps}."


def _beats(head: Head, tier: int, claims: Sequence[Claim]) -> str:
    """What these claims of one tier license, on the servers and models of their own regimes."""
    own = {claim.regime for claim in claims}
    regimes = [r for r in head.regimes if r.name in own]
    server = "" if head.server is None else head.server.name
    if tier == 4:
        return f"improves sync-excess SLO violations on {server} in live operation over matched random placement"
    placed = "beats matched random placement of the same number of merges"
    if tier == 3:
        return f"{placed} in replay on {server}"
    if tier == 2:
        stated = [r.sidecar.calibration for r in regimes if r.sidecar.calibration is not None]
        return f"{placed} under a sidecar model calibrated on {_listed(map(_measured, stated))}"
    models = _listed(
        f"{'' if r.sidecar.calibrated else 'uncalibrated '}simulated sidecar {r.sidecar.name}" for r in regimes
    )
    return f"{placed} in a repeatable benchmark on the {models}"


def _measured(stated: Mapping[str, Any]) -> str:
    """Server, model, hardware and date of a calibration; what it does not state is not passed over."""
    host = stated.get("host") or {}
    cores, processor = host.get("cores"), host.get("processor")
    hardware = f"{cores} core{'' if cores == 1 else 's'} of {processor}" if cores and processor else "unnamed hardware"
    model = stated.get("served_model") or "an unnamed model"
    return f"{stated['server']} serving {model} on {hardware} at {stated['date']}"


def _gain(claim: Claim) -> float:
    return claim.envelope.gain_pp or 0.0


def _gains(claim: Claim) -> str:
    e = claim.envelope
    load = ""
    if e.load_gain_pp is not None:
        simulated = " in simulation" if e.load_gain_simulated else ""
        load = f"; {e.load_gain_pp:.2f} pp {_interval(e.load_interval_pp)} from following the load{simulated}"
    return f"{claim.regime} ({e.gain_pp:.2f} pp {_interval(e.interval_pp)} fewer {claim.slo} violations{load})"


def _interval(limits: Limits | None) -> str:
    low, high = limits or (None, None)
    return f"[{'?' if low is None else f'{low:.2f}'}, {'?' if high is None else f'{high:.2f}'}]"


def _traces(head: Head) -> str:
    """Whoever wrote the scheduler may have seen them, unless the root was drawn after it was fixed."""
    real = any(r.described("trace") for r in head.regimes)
    return "" if head.settings.root == "fresh" and not real else ", on public traces"


def _place(head: Head) -> str:
    return "" if head.server is None else f" on {head.server.name}"


def _failed(head: Head, claims: Sequence[Claim]) -> str:
    """Three different reasons for which G3 fails, told apart; another gate's failure comes first."""
    how = "live operation" if head.settings.back_end == "live" else "replay"
    name, where = head.contender.name, f" in {how} on {head.server.name}" if head.server is not None else ""
    unsound = next((c for c in claims if c.status("G3") != "failed"), None)
    if unsound is not None:
        return f"Nothing is licensed about {name}{_place(head)}: {unsound.reason}."
    told, shown = [], False
    for standing, text in (
        (
            Standing.NOT_CHANCE,
            "with the same number of merges, its placement was not shown to beat matched random placement",
        ),
        (Standing.NOT_LOAD, "it beats matched random placement, but was not shown to follow the load"),
        (
            Standing.BELOW_MINIMUM,
            f"it was not shown to gain more than {head.settings.min_effect_pp:g} pp, although it gains something",
        ),
    ):
        mine = [c for c in claims if c.envelope.standing == standing]
        if mine:
            shown |= standing != Standing.NOT_CHANCE
            told.append(f"{text} in {_listed(map(_where if standing == Standing.NOT_CHANCE else _gains, mine))}")
    said = [f"Nothing is licensed about {name}: {'; '.join(told)}{where}{_traces(head) if shown else ''}."]
    more = [*_unconfined(head), *_level(head)] if shown else []
    return " ".join([*said, *_untold(head, claims), *more])


def _untold(head: Head, claims: Sequence[Claim]) -> Iterator[str]:
    """Why a log whose placement did well is not shown to follow generated load: nothing could show it."""
    real = {r.name for r in head.regimes if r.described("trace")}
    mine = [c for c in claims if c.envelope.standing == Standing.NOT_LOAD and c.regime not in real]
    if head.contender.kind == "recorded" and mine:
        yield "In generated load every seed has the whole log, so nothing can be told of following the load there."


def _where(claim: Claim) -> str:
    return claim.regime


def _seen(claim: Claim) -> str:
    """What an undecided run saw all the same, and what it could have shown at best."""
    e: EnvelopePart = claim.envelope
    if e.gain_pp is None or e.attainable_p is None:
        return ""
    return (
        f" Seen, not shown: {e.gain_pp:+.2f} pp of gain in {claim.slo} over {e.n_seeds} seeds; the smallest p that so "
        f"many could give is {e.attainable_p:.3g}."
    )


def _listed(items: Iterable[str]) -> str:
    found = list(dict.fromkeys(items))
    return found[0] if len(found) == 1 else ", ".join(found[:-1]) + " and " + found[-1]
