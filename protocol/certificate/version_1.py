"""Certificates of version 1: what of them can still be recomputed, and the same rows under today's rules."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol.certificate.assess import assess
from protocol.certificate.model import Certificate, Head
from protocol.certificate.reading import RAW
from protocol.evidence import store
from protocol.evidence.consistency import contradictions
from protocol.evidence.model import Evidence

#: The root that version 1 used where none was given.
_PUBLIC_ROOT = 20260601
#: Numbers of a claim that mean the same in both versions and need no random draws.
_KEPT = ("gain_pp", "policy_excess_pp", "control_excess_pp", "no_sync_violation_pct", "n_seeds", "n_draws")
_KEPT_BY_SEED = ("seed", "merges", "policy", "draw_mean", "no_sync_pct")


def rejudged(folder: Path) -> tuple[Head, list[Evidence], Certificate]:
    """The same rows under today's rules.  Raises BadInput and the like on files that are broken."""
    asked = json.loads((folder / RAW / store.ASKED).read_text("utf-8"))
    head = head_of(asked)
    evidence = store.read(folder / RAW)
    if head.settings.back_end == "live":
        evidence = [_named(e, head.regimes[0].name) for e in evidence]
    return head, evidence, assess(head, evidence)


def _named(e: Evidence, regime: str) -> Evidence:
    return replace(e, regime=regime, served=tuple(replace(r, regime=regime) for r in e.served))


def differences(folder: Path, stated: dict[str, Any]) -> Iterator[str]:
    """Where the stored rows do not give the budgets, violations and gains that a certificate of version 1 states.

    A seed that is compared no more, for a reason that the new verdict states, is held to what else was stated.
    """
    _, evidence, now = rejudged(folder)
    asked = json.loads((folder / RAW / store.ASKED).read_text("utf-8"))
    yield from (f"{key}: not as {RAW}/{store.ASKED} has it" for key in asked.keys() - {"regimes"}
                if stated.get(key) != asked[key])  # fmt: skip
    for was, then in zip(asked["regimes"], stated["regimes"], strict=True):
        if any(then.get(key) != value for key, value in was.items()):
            yield f"regime {was['name']}: not as {RAW}/{store.ASKED} has it"
    yield from contradictions(evidence)
    for mine, then in zip(now.claims, stated["claims"], strict=True):
        where, e, old = f"{mine.regime}, {mine.slo}", mine.envelope.model_dump(mode="json"), then["envelope"]
        if (mine.regime, mine.slo) != (then["regime"], then["slo"]):
            yield f"claims: {where} stands where {then['regime']}, {then['slo']} is stated"
        rows, old_rows = ({row["seed"]: row for row in x["per_seed"]} for x in (e, old))
        for seed in sorted({*rows, *old_rows}):
            if seed not in old_rows:
                yield f"{where}, seed {seed}: compared now, not in the certificate"
            elif seed in rows:
                yield from _differing(f"{where}, seed {seed}", _KEPT_BY_SEED, old_rows[seed], rows[seed])
        yield from _differing(where, _KEPT, old, e if rows.keys() == old_rows.keys() else _means(old_rows, old))


def _differing(where: str, keys: tuple[str, ...], old: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for key in keys:
        if not _same(now[key], old[key]):
            yield f"{where}, {key}: stated {old[key]}, recomputed {now[key]}"


def _means(rows: dict[int, dict[str, Any]], old: dict[str, Any]) -> dict[str, Any]:
    """What a claim's numbers are by the seeds that it states."""
    if not rows:
        return old
    policy, control, idle = (
        sum(row[key] for row in rows.values()) / len(rows) for key in ("policy", "draw_mean", "no_sync_pct")
    )
    return {
        **old,
        "gain_pp": control - policy,
        "policy_excess_pp": policy,
        "control_excess_pp": control,
        "no_sync_violation_pct": idle,
        "n_seeds": len(rows),
    }


def _same(a: Any, b: Any) -> bool:
    return a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9))


def head_of(asked: dict[str, Any]) -> Head:
    """What was asked, in today's words."""
    settings = dict(asked["settings"])
    real, root = settings.pop("real", None), settings["root_seed"]
    common: dict[str, Any] = {"root": "public" if root == _PUBLIC_ROOT else "given"}
    regimes, server = asked["regimes"], None
    if "blocks" in settings:
        blocks, live = settings.pop("blocks"), {}
        for key in ("segment_s", "settle_s", "warm_up_s", "rate_scale", "scrape_s", "decision_timeout_s"):
            live[key] = settings.pop(key)
        common |= {"back_end": "live", "idle": 2, "draws": 1, "live": live}
        server = asked["server"]
        sidecar = {"calibrated": False, "calibration": asked["calibration"]}
        regimes = [{**r, "n_seeds": blocks, "sidecar": {"name": r["sidecar"], **sidecar}} for r in regimes]
    elif real is not None:
        common |= {"back_end": "real", "idle": 2, "attempts": real["attempts"]}
        server = {**real["server"], "merge_load": real["merge_load"], "client_host": real["client_host"]}
    return Head.model_validate(
        {
            **{key: asked[key] for key in ("contender", "preregistration", "versions")},
            "settings": {**settings, **common},
            "regimes": regimes,
            **({"server": server} if server is not None else {}),
        }
    )
