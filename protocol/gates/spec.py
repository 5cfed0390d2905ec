"""What a claim's evidence is judged by: a typed extract of what was asked, one regime at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from protocol.calibration.support import Support
from protocol.merging.corridor import Corridor
from protocol.merging.peers.schedules import Peers
from protocol.merging.practice import Practice, Timing
from protocol.workload.slo import Slo

#: Where the judged replays come from.
BackEnd = Literal["simulated", "real", "live"]
#: Margin in pp of the A/A comparison when the declared minimum effect is 0; otherwise it is half of that effect.
AA_MARGIN_PP = 1.0


@dataclass(frozen=True)
class Spec:
    """Everything of a head that the gates of one regime need.

    kind : what was judged: `scheduler`, `planner` (sees the whole trace) or `recorded` (a log of what happened).
    draws : matched draws a seed; `sequential` ones may be fewer.  until_decided : a live session was watched block by
        block and may have ended before `n_seeds`.  idle : replays without merges a seed.
    predicted : simulated seeds beyond the replayed ones, whose prediction decides over chance; 0: none.
    margin_pp : of the A/A comparison, None where it follows from the minimum effect.
    calibration : what the head states of the calibration behind the sidecar, None without one.
    support, agreement : the loads that the calibration saw, and by limit its runs as they were counted.
    server : name of the real server, None in simulation.  attempts : at a real replay that turns out invalid.
    loss : seeds to train and margin in nats, None where nothing is trained.
    confinement : what took hold of the scheduler's process, as it was stated before any of its code ran; None where no
        process was judged.  unconfined : whether less than what G0 rests on was asked for.
    """

    regime: str
    back_end: BackEnd
    kind: Literal["scheduler", "planner", "recorded"]
    corridor: Corridor
    peers: Peers | None
    islands: int
    slos: tuple[Slo, ...]
    n_seeds: int
    draws: int
    idle: int
    sequential: bool
    tokens_per_step: int
    root_seed: int
    alpha: float
    min_effect_pp: float
    margin_pp: float | None = None
    calibration: Mapping[str, Any] | None = None
    support: Support | None = None
    agreement: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    server: str | None = None
    attempts: int = 1
    loss: tuple[int, float] | None = None
    confinement: Mapping[str, Any] | None = None
    unconfined: bool = False
    until_decided: bool = False
    practice: Practice = Practice()
    predicted: int = 0

    @property
    def timing(self) -> Timing:
        return Timing(self.corridor, self.practice)

    @property
    def on_server(self) -> bool:
        return self.back_end != "simulated"

    @property
    def aa_margin_pp(self) -> float:
        if self.margin_pp is not None:
            return self.margin_pp
        return self.min_effect_pp / 2 if self.min_effect_pp > 0 else AA_MARGIN_PP
