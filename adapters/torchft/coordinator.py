"""Who decides when the replicas of a training loop merge, and what is written of it.

A decision is about one *turn*: the manager's step (commits so far) and how often it was tried, with the inner steps
since the last merge.  The first replica that comes to a decision has the scheduler asked; all others are told the same
answer at the same inner step.  A replica that joined or was left behind merges with the fleet's next merge, whatever
its own steps.  H_min and H_max hold whatever the scheduler says; one that fails merges at H_max from then on.
"""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from adapters.schedulers.opening import open_scheduler
from adapters.sidecars.watching import PageWatch
from adapters.torchft.log import LoopLog, Turn
from protocol import seeds
from protocol.errors import BadInput, SchedulerError
from protocol.placement.rollout import Arrivals, ask, observation
from protocol.regimes.regime import Regime
from protocol.replay.sidecar import ServingState
from protocol.scheduler import IslandObservation, Observation, SchedulerRun
from protocol.workload.trace import NS_PER_S

#: Seconds that a scheduler's decisions may take in all: a run of training has no horizon.
ENDLESS_S = 1e9
_NOTHING = ServingState(0.0, 0, 0, 0, None, None)


class _Counted(Arrivals):
    """Arrivals as a metrics page showed them."""

    def __init__(self, watch: PageWatch | None, seconds: int) -> None:
        empty = (np.zeros(seconds), np.zeros(seconds))
        self.requests, self.prompt_tokens = empty if watch is None else watch.arrivals(seconds)


class Decisions:
    """Decisions of all replicas, one at a time; `regime` has corridor, pace and fragments.

    watch : the server that the merges disturb; None: nobody serves.
    """

    def __init__(self, run: SchedulerRun, regime: Regime, log: LoopLog, watch: PageWatch | None = None) -> None:
        self.run, self.regime, self.log, self.watch = run, regime, log, watch
        self.corridor, self.fragments = regime.corridor(), regime.merge.fragments
        self.first = self.corridor.gap_min * self.corridor.decision_steps
        self.last = self.corridor.gap_max * self.corridor.decision_steps
        self._lock, self._began_ns = threading.Lock(), time.monotonic_ns()
        self._turn: Turn = (0, 0)
        self._asked_to = 0
        self._merge_at: int | None = None
        self._merges, self._merged_ns = 0, self._began_ns
        self._loss_then: float | None = None
        self._followers: set[str] = set()
        self._failed = self._finishing = False
        self._over_from: Turn | None = None

    def joined(self, replica: str) -> None:
        """It follows the fleet's next merge, unless nothing was merged or tried yet: all begin alike, however late."""
        with self._lock:
            if self._turn != (0, 0):
                self._followers.add(replica)

    def follows(self, replica: str, turn: Turn) -> bool:
        """Whether it joined or was left behind."""
        with self._lock:
            return turn < self._turn or replica in self._followers

    def ask(self, replica: str, turn: Turn, steps: int, told: Mapping[str, float]) -> bool:
        """Whether this replica merges now, after so many inner steps since its last merge."""
        with self._lock:
            self._advance(turn)
            if turn < self._turn or replica in self._followers:
                return self._merge_at is not None
            if self._merge_at is None and steps > self._asked_to:
                self._asked_to = steps
                if self._decided(steps, told):
                    self._merge_at = steps
            return self._merge_at is not None and steps >= self._merge_at

    def merged(self, replica: str, turn: Turn, loss: float) -> bool:
        """A replica's merge is over, and this turn is its next.  Whether training is over, too, alike for all."""
        with self._lock:
            self._followers.discard(replica)
            self._advance(turn, loss)
            return self._over_from is not None and turn >= self._over_from

    def finish(self) -> None:
        """Have training end with the next merge."""
        with self._lock:
            self._finishing = True

    def _advance(self, turn: Turn, loss: float | None = None) -> None:
        if turn <= self._turn:
            return
        self._turn, self._asked_to, self._merge_at = turn, 0, None
        if self._finishing and self._over_from is None:
            self._over_from = turn
        self._merges, self._merged_ns, self._loss_then = self._merges + 1, time.monotonic_ns(), loss

    def _decided(self, steps: int, told: Mapping[str, float]) -> bool:
        if steps < self.first:
            return False
        if steps >= self.last or self._failed:
            return steps >= self.last
        try:
            return ask(self.run, self._observe(steps, told))
        except SchedulerError as error:
            self._failed = True
            self.log.event("scheduler_failed", why=str(error))
            return False

    def _observe(self, steps: int, told: Mapping[str, float]) -> Observation:
        now_ns = time.monotonic_ns() - self._began_ns
        serving = _NOTHING if self.watch is None else self.watch.state()
        loss, staleness_s = told["loss"], (now_ns + self._began_ns - self._merged_ns) / NS_PER_S
        reduction = 0.0 if self._loss_then is None else max(0.0, self._loss_then - loss)
        tokens = steps * self.regime.learner.tokens_per_step
        island = IslandObservation(
            steps, loss, reduction, tokens, staleness_s, told.get("network_pressure", 0.0), serving.serving_pressure,
            told.get("checkpoint_pressure", 0.0), serving.in_flight, serving.queued, serving.completed,
            serving.recent_e2e_s, serving.recent_ttft_s,
        )  # fmt: skip
        seen = observation(
            (island,), _Counted(self.watch, now_ns // NS_PER_S), self.corridor, now_ns, self._merges,
            steps=steps, loss=loss, loss_reduction=reduction, tokens=tokens, staleness_s=staleness_s,
            telemetry_age_s=serving.telemetry_age_s,
        )  # fmt: skip
        since = int(told.get("fragment_steps", steps))
        return replace(seen, fragment=self._turn[0] % self.fragments, fragments=self.fragments, fragment_steps=since)


class Coordinator:
    """Owns the scheduler, watches the server, writes the log, and answers replicas at `address`.

    scheduler : as `protocol certify` takes it.  regime : a name or file, whose corridor, pace and fragments hold here.
    sidecar : URL of the server that the merges disturb.  slots : requests that it admits at a time.
    Raises BadInput, and SchedulerError for a scheduler that cannot be loaded.
    """

    def __init__(
        self, scheduler: str, regime: str | Regime, log: Path, *, sidecar: str | None = None, slots: int | None = None,
        scrape_s: float = 0.5, bind: tuple[str, int] = ("127.0.0.1", 0), seed: int = 20260601,
        decision_timeout_s: float = 5.0,
    ) -> None:  # fmt: skip
        world = Regime.load(regime) if isinstance(regime, str) else regime
        if world.peer is not None:
            raise BadInput(f"regime {world.name}", "islands that merge as peers", "one in which all merge together")
        source = open_scheduler(
            scheduler, decision_timeout_s=decision_timeout_s, log_path=log.with_suffix(".scheduler.log"),
            hidden=[log],
        )  # fmt: skip
        self._source, self.regime, self._closed = source, world, False
        try:
            if source.kind != "scheduler":
                raise BadInput(scheduler, f"a {source.kind} schedule", "a scheduler that decides as it goes")
            run = source.start(seeds.words(seed, "torchft", source.name), ENDLESS_S)
            about = {"scheduler": source.name, "digest": source.digest(), "regime": world.name}
            self._server = _Server(bind, _Handler)
            try:
                self.log = LoopLog(log, about, world)
            except BadInput:
                self._server.server_close()
                raise
        except OSError as error:
            source.close()
            raise BadInput("bind", f"{bind[0]}:{bind[1]} ({error.strerror})", "a free address") from None
        except BaseException:
            source.close()
            raise
        limits = int(world.sidecar_overrides.get("max_num_seqs", 256))
        self._watch = None if sidecar is None else PageWatch(sidecar, slots or limits, scrape_s)
        self.decisions = Decisions(run, world, self.log, self._watch)
        self._server.coordinator = self
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name="coordinator")
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        return f"{str(host)}:{port}"

    @property
    def replicas(self) -> frozenset[str]:
        """Who is there now."""
        return self.log.replicas

    def finish(self) -> None:
        """Have training end with the next merge: every replica is told so after it."""
        self.decisions.finish()

    def close(self) -> None:
        """End the scheduler, and the log; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._server.shutdown()
        self._server.server_close()
        if self._watch is not None:
            self._watch.close()
        self._source.close()
        self.log.close()

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads = True, True
    coordinator: Coordinator


class _Handler(socketserver.StreamRequestHandler):
    """One replica: a JSON object a line, an answer a line."""

    def handle(self) -> None:
        coordinator = cast(_Server, self.server).coordinator
        decisions, log, replica, bye = coordinator.decisions, coordinator.log, None, False
        try:
            for line in self.rfile:
                said = json.loads(line)
                what, answer = said["do"], {}
                if what == "hello":
                    replica = str(said["replica"])
                    decisions.joined(replica)
                    log.joined(replica)
                    answer = {"first": decisions.first, "last": decisions.last,
                              "grid": decisions.corridor.decision_steps}  # fmt: skip
                elif replica is not None and what == "ask":
                    log.trained(replica, said["steps"])
                    answer = {"merge": decisions.ask(replica, tuple(said["turn"]), said["steps"], said["told"])}
                elif replica is not None and what == "begin":
                    turn = tuple(said["turn"])
                    log.begins(replica, turn, said["fragment"], said["steps"], decisions.follows(replica, turn))
                elif replica is not None and what == "end":
                    log.ends(
                        replica, committed=said["committed"], healed=said["healed"], n_bytes=said["bytes"]
                    )  # fmt: skip
                    answer = {"over": decisions.merged(replica, tuple(said["turn"]), said["loss"])}
                elif what == "bye":
                    bye = True
                self.wfile.write(json.dumps(answer).encode() + b"\n")
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.event("connection_lost", replica=replica, why=f"{type(error).__name__}: {error}")
        if replica is not None:
            log.left(replica, bye)
