"""What one seed (live: one block) showed: everything that the gates read, and nothing that they compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from protocol.errors import BadInput
from protocol.evidence.trained import Trained
from protocol.merging.placements import Placements
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM, Replay
from protocol.workload.slo import Slo

#: Arms kept as placements and violation counts beside the uniform draws: sensitivity controls, the
#: schedules made on every trace of the regime.
PERMUTED, SHIFTED, CROSSED = "own-gaps-permuted", "own-schedule-shifted", "crossed"
OPTIMUM, PESSIMUM = "optimum", "pessimum"
#: Controls of peer schedules: the policy's own partners at other times, and other partners at its own times.
TIMING, PARTNERS = "own-partners-retimed", "own-times-repartnered"


@dataclass(frozen=True)
class Probe:
    """One integrity re-run: where the world was changed (None: not at all) and what then differed (None: nothing)."""

    kind: str
    at_ns: int | None
    difference: str | None


@dataclass(frozen=True, eq=False)
class Evidence:
    """One seed of one regime, or one block of a live session, at any tier.

    decided_ns, merged : when the scheduler was asked in simulation, and whether a merge followed.
    placed : schedules on the decision grid by arm, with what each cost in simulation.
    simulated : the rows of the policy and of no merge at all as the simulator served them, by arm.
    served : every attempt on a real server, in the order in which they ran; where there are any, they are judged.
    trained : by arm, what models lost that were trained under the schedules, where any were.
    """

    regime: str
    seed: int
    trace_digest: str
    n_requests: int
    prompt_tokens: int
    output_tokens: int
    forced: int
    corridor_violation: str | None
    replay_difference: str | None
    probes: tuple[Probe, ...]
    decided_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    merged: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    placed: Mapping[str, Placements] = field(default_factory=dict)
    simulated: Mapping[str, Replay] = field(default_factory=dict)
    served: tuple[Replay, ...] = ()
    trained: Mapping[str, Trained] = field(default_factory=dict)

    @cached_property
    def judged(self) -> Mapping[tuple[str, int], Replay]:
        """The replays that count, by arm and draw: the first valid attempts where a server served, else simulated."""
        if not self.served:
            return {(arm, 0): r for arm, r in self.simulated.items()}
        found: dict[tuple[str, int], Replay] = {}
        for r in self.served:
            if r.invalid is None:
                found.setdefault((r.arm, r.draw), r)
        return found

    def replay(self, arm: str, draw: int = 0) -> Replay | None:
        return self.judged.get((arm, draw))

    def replays(self, arm: str) -> list[Replay]:
        """The judged replays of an arm, by draw."""
        return [r for (own, _), r in sorted(self.judged.items(), key=lambda item: item[0][1]) if own == arm]

    def violations(self, arm: str, slo: Slo, index: int) -> NDArray[np.float64]:
        """Requests that miss the SLO under each schedule of an arm, shape (n,); empty where the arm is missing.

        Counted from rows where a server served them, from the stored prices in simulation.  index : which SLO of the
        regime `slo` is.
        """
        if self.served:
            return np.array([r.rows.violates(slo).sum() for r in self.replays(arm)], np.float64)
        return self.priced(arm, index)

    def priced(self, arm: str, index: int) -> NDArray[np.float64]:
        """The same as simulated, whatever a server served."""
        placed = self.placed.get(arm)
        return np.empty(0) if placed is None else placed.violations[:, index].astype(np.float64)

    def gaps(self, arm: str, draw: int) -> NDArray[np.int32]:
        """A stored schedule as gaps in decisions; none without merges.  Raises KeyError where nothing is stored."""
        return np.zeros(0, np.int32) if arm == NO_SYNC else self.placed[arm].rows()[draw]

    def with_placed(self, arm: str, placements: Placements) -> Evidence:
        return replace(self, placed={**self.placed, arm: placements})


def missing_arm(e: Evidence, draws: int, idle: int) -> str | None:
    """The first replay that a claim about a real server needs and this seed has not, or None.

    draws : matched draws.  idle : replays without merges.
    """
    wanted = [(POLICY, 0), *((NO_SYNC, k) for k in range(idle)), *((UNIFORM, k) for k in range(draws))]
    return next(
        (f"{arm} {draw}" if arm != POLICY else arm for arm, draw in wanted if e.replay(arm, draw) is None), None
    )


def attached(evidence: Sequence[Evidence], made: Sequence[Replay]) -> list[Evidence]:
    """The seeds with these replays on a server.  Raises BadInput on a replay of a seed that is not there."""
    return list(_joined(evidence, made, "served", lambda mine: tuple(mine)))


def attached_training(evidence: Sequence[Evidence], runs: Sequence[Trained]) -> list[Evidence]:
    """The seeds with these training runs.  Raises BadInput on one of a seed that is not there, or two of one arm."""
    return list(_joined(evidence, runs, "trained", _by_arm))


def _by_arm(runs: Sequence[Trained]) -> dict[str, Trained]:
    found = {t.arm: t for t in runs}
    if len(found) < len(runs) or not found.keys() <= {POLICY, UNIFORM}:
        what = ", ".join(f"seed {t.seed} {t.arm}" for t in runs)
        raise BadInput("training runs", what, f"{POLICY} and {UNIFORM} of a seed, each once")
    return found


def _joined(evidence, items, field_name, made) -> Iterator[Evidence]:  # type: ignore[no-untyped-def]
    groups: dict[tuple[str, int], list[object]] = {(e.regime, e.seed): [] for e in evidence}
    for item in items:
        if (item.regime, item.seed) not in groups:
            raise BadInput(f"{field_name} rows", f"{item.regime}, seed {item.seed}", "a seed of this campaign")
        groups[item.regime, item.seed].append(item)
    for e in evidence:
        mine = groups[e.regime, e.seed]
        yield replace(e, **{field_name: made(mine)}) if mine else e
