"""What a certificate holds, field by field; its JSON schema is generated from here.

A `Head` is what was asked, a `Certificate` what was found beside it.
"""

from __future__ import annotations

from importlib.metadata import version
from platform import python_version
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from protocol.calibration.support import Support
from protocol.gates.result import Status
from protocol.gates.spec import BackEnd, Spec
from protocol.merging.corridor import Corridor
from protocol.merging.peers.schedules import Merging, Peers
from protocol.merging.practice import Practice
from protocol.reading import read
from protocol.workload.slo import Slo

SCHEMA = "diloco-protocol/certificate"
#: 1: one schema for simulation and replays, another for live sessions.  2: one for all; a tier a claim, both gains,
#: tests by name and at the minimum effect, typed throughout.
SCHEMA_VERSION = 2
TIERS = ("refused", "stress harness", "calibrated replay", "real replay", "live")

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]
Limits = tuple[float | None, float | None]
#: A p-value is never 0: whatever was resampled includes what was seen.
P = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Part(BaseModel):
    """A part with no other fields than its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class OpenPart(BaseModel):
    """A part that also carries what describes it."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    def described(self, key: str) -> Any:
        return (self.model_extra or {}).get(key)


# What was asked --------------------------------------------------------------------------------------------------


class Contender(OpenPart):
    """Who is judged, with the digest of what was judged."""

    name: str
    kind: Literal["scheduler", "planner", "recorded"]


class CorridorPart(Part):
    """A corridor in inner steps and nanoseconds."""

    h_min: int
    h_max: int
    decision_steps: int
    step_ns: int
    merge_ns: int
    horizon_ns: int

    def corridor(self) -> Corridor:
        return Corridor(**self.model_dump())


class RunRow(Part):
    """One run of a calibration, counted by a limit, as it was measured and as the model serves it."""

    run: str
    load: str
    requests: Count
    merges: Count
    violations: Count
    simulated_violations: Count


class SidecarPart(OpenPart):
    """The simulated sidecar: its parameters, and what is stated of the calibration behind them.

    support : the ranges of load that the calibration saw.  agreement : by limit, its runs.
    """

    name: str
    calibrated: bool
    calibration: dict[str, Any] | None = None
    support: dict[str, tuple[float, float]] | None = None
    agreement: dict[str, tuple[RunRow, ...]] | None = None


class RegimePart(OpenPart):
    """One regime as it was asked for; what else its file declares is carried along."""

    name: str
    digest: Sha256
    islands: int = Field(ge=1)
    corridor: CorridorPart
    n_seeds: int = Field(ge=1)
    slos: tuple[str, ...] = Field(min_length=1)
    sidecar: SidecarPart
    tokens_per_step: int
    peer: dict[str, Any] | None = None
    merge: dict[str, Any] | None = None

    def practice(self) -> Practice:
        """How its merges are practised.  Raises BadInput on an impossible table."""
        return Practice() if self.merge is None else read(Practice, self.merge, f"{self.name}, merge")

    def peers(self) -> Peers | None:
        """How its islands merge as peers; None where all merge together.  Raises BadInput on an impossible table."""
        if self.peer is None:
            return None
        merging = read(Merging, self.peer, f"{self.name}, peer")
        merging.check(f"{self.name}, peer", self.islands)
        return Peers(self.corridor.corridor(), merging, self.islands)


class ServerPart(OpenPart):
    """The real server that served, and the load that stood for a merge on its host."""

    name: str
    version: str
    merge_load: str


class LivePart(Part):
    """How a live session ran."""

    segment_s: float
    settle_s: float
    warm_up_s: float
    rate_scale: float
    scrape_s: float
    decision_timeout_s: float


class TrainPart(OpenPart):
    """Models trained under the judged schedules."""

    seeds: int
    loss_margin: float


class Settings(Part):
    """How the evidence is made and judged.

    draws : matched draws a seed; idle : replays without merges a seed on a real server; margin_pp : of the A/A
    comparison where it is declared; until_decided : a live session ends with the block after which all claims pass;
    predicted : further seeds in simulation, whose prediction of the replayed ones decides;
    root : where the root seed comes from, nonce : what a fresh one was derived with.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    back_end: BackEnd = "simulated"
    root_seed: Count
    root: Literal["public", "given", "fresh"] = "public"
    nonce: str | None = None
    alpha: float = Field(gt=0, lt=1)
    min_effect_pp: float = Field(ge=0)
    bounded: bool = False
    unconfined: bool = False
    draws: int = Field(ge=1)
    control_draws: Count = 0
    probes: Count = 0
    sequential: bool = False
    until_decided: bool = False
    idle: int = 1
    attempts: int = 1
    predicted: Count = 0
    margin_pp: float | None = None
    live: LivePart | None = None
    train: TrainPart | None = None


class Variant(Part):
    """One variant that was tried; gain_pp : mean over claims on the development traces, null where it was refused."""

    scheduler: str
    digest: str | None
    gain_pp: float | None
    reason: str | None


class SweepPart(Part):
    """How the scheduler was chosen: as the best of several on traces that it is not judged on."""

    tried: int
    development_root: int
    development_seeds: int
    development_draws: int
    development_traces: tuple[str, ...] = ()
    variants: tuple[Variant, ...]
    winner: str


class Head(Part):
    """Everything that was asked: what a registration fixes, and the versions that the numbers may depend on."""

    contender: Contender
    preregistration: str | None = None
    settings: Settings
    versions: dict[str, str]
    regimes: tuple[RegimePart, ...]
    server: ServerPart | None = None
    sweep: SweepPart | None = None

    def spec(self, regime: RegimePart) -> Spec:
        """What the gates need of it for one regime."""
        s = self.settings
        return Spec(
            regime=regime.name,
            back_end=s.back_end,
            kind=self.contender.kind,
            corridor=regime.corridor.corridor(),
            peers=regime.peers(),
            practice=regime.practice(),
            islands=regime.islands,
            slos=tuple(Slo.parse(text) for text in regime.slos),
            n_seeds=regime.n_seeds,
            draws=s.draws,
            idle=s.idle,
            sequential=s.sequential,
            until_decided=s.until_decided,
            tokens_per_step=regime.tokens_per_step,
            root_seed=s.root_seed,
            alpha=s.alpha,
            min_effect_pp=s.min_effect_pp,
            margin_pp=s.margin_pp,
            calibration=regime.sidecar.calibration,
            support=None if regime.sidecar.support is None else Support(**regime.sidecar.support),
            agreement={} if regime.sidecar.agreement is None else plain(regime.sidecar)["agreement"],
            server=None if self.server is None else self.server.name,
            attempts=s.attempts,
            predicted=s.predicted,
            confinement=self.contender.described("confinement"),
            unconfined=s.unconfined,
            loss=None if s.train is None else (s.train.seeds, s.train.loss_margin),
        )

    def plain(self, dated: bool = True) -> dict[str, Any]:
        """As JSON values.  dated : with the day on which the server was reached, which nobody asked for."""
        values = plain(self)
        if not dated and "server" in values:
            values["server"] = {key: value for key, value in values["server"].items() if key != "date"}
        return values


def plain(part: BaseModel) -> dict[str, Any]:
    """JSON values of a part; a table that may be left out is left out where there is none."""
    return part.model_dump(mode="json", by_alias=True, exclude_unset=True)


def versions() -> dict[str, str]:
    """Versions that the numbers may depend on."""
    packages = (
        "diloco-protocol",
        "jinja2",
        "matplotlib",
        "numba",
        "numpy",
        "pyarrow",
        "pydantic",
        "scipy",
        "statsmodels",
    )
    return {"python": python_version()} | {name: version(name) for name in packages}


# What was found --------------------------------------------------------------------------------------------------


class CheckPart(Part):
    """One condition of a gate."""

    name: str
    status: Status
    reason: str
    statistic: float | None
    threshold: float | None
    n: int | None
    interval: tuple[float, float] | None
    details: dict[str, Any]


class GatePart(Part):
    gate: Literal["G0", "G1", "G2", "G3", "G4"]
    title: str
    status: Status
    reason: str
    checks: tuple[CheckPart, ...]


class TestPart(Part):
    """One test of a gain: p at the minimum effect, p against no gain at all, the smallest p that it could give."""

    __test__ = False  # not a test class, whatever its name

    name: str
    about: Literal["chance", "load"]
    p: P | None
    p_at_zero: P
    smallest_p: P | None


class SeedRow(Part):
    """Sync-excess violations of one seed, pp."""

    seed: int
    merges: int
    policy: float
    draw_mean: float
    draw_sd: float
    rank: int
    of: int
    no_sync_pct: float
    optimum: float | None


class ControlPart(Part):
    """One control and the question that it answers; `gates` says whether it decides."""

    name: str
    question: str
    gain_pp: float | None
    p: P | None
    n: int
    gates: bool
    says: str


class PredictedPart(Part):
    """A gain with the simulator's prediction removed, beside the same by the replays alone, which are its check.

    further : simulated seeds; simulated_gain_pp, further_gain_pp : mean simulated gain on the replayed and on those.
    correlation : of real and simulated draws within a seed; slope : mean of real on simulated ones.
    """

    further: Count
    simulated_gain_pp: float
    further_gain_pp: float
    correlation: float | None
    slope: float
    noise_left: float | None
    plain_gain_pp: float
    plain_interval_pp: Limits
    plain_tests: tuple[TestPart, ...]


class EnvelopePart(Part):
    """Both gains of a claim and everything behind them; unknown is null.  Costs in pp of sync-excess violations."""

    gain_pp: float | None
    interval_pp: Limits | None
    lower_bound_pp: float | None
    t_interval_pp: Limits | None
    load_gain_pp: float | None
    load_interval_pp: Limits | None
    load_lower_bound_pp: float | None
    load_gain_simulated: bool
    min_effect_pp: float
    tests: tuple[TestPart, ...]
    p: P | None
    decided_by: str | None
    p_sequential: P | None
    p_holm: P | None
    standing: str
    attainable_p: float | None
    bounded_lower_bound_pp: float | None
    bounded_p: float | None
    worst_seed: int | None
    worst_seed_gain_pp: float | None
    unseen_loss_share: float | None
    n_seeds: Count
    n_draws: Count
    detectable_gain_pp: float | None
    power_curve: tuple[tuple[float, float], ...] | None = None
    policy_excess_pp: float | None
    control_excess_pp: float | None
    no_sync_violation_pct: float | None
    policy_violations_per_merge: float | None
    control_violations_per_merge: float | None
    optimum_gain_pp: float | None
    gain_captured: float | None
    requests_saved_per_sidecar_per_10_min: float | None
    per_seed: tuple[SeedRow, ...]
    controls: tuple[ControlPart, ...]
    predicted: PredictedPart | None = None


class TierPart(Part):
    number: int = Field(ge=0, le=4)
    name: str
    upper_bound: bool


class Claim(Part):
    """One regime and SLO: its gates, its verdict, and how far it reaches."""

    regime: str
    slo: str
    verdict: Verdict
    tier: TierPart
    reason: str
    gates: tuple[GatePart, ...]
    envelope: EnvelopePart

    def status(self, gate: str) -> Status:
        return next(g.status for g in self.gates if g.gate == gate)


class GaugesPart(Part):
    """How far a server's gauges lagged in a live session; see `protocol.replay.telemetry.Lag`."""

    blind_s: float
    lag_s: float | None
    distance: float | None
    distance_at_0: float | None
    looks: Count


class SeedPart(OpenPart):
    """What one seed (live: one block) was and did."""

    seed: Count
    trace_digest: Sha256
    requests: Count
    merges: Count
    busy_s: float
    inner_steps: Count


class JudgedRegime(RegimePart):
    seeds: tuple[SeedPart, ...]


class Certificate(Head):
    """schema, schema_version, everything of the head, and what came of it.

    replays : every attempt on a real server.  gauges : how old a live session's were, null where none was found.
    files : SHA-256 of the raw files, by name.  pages : report, tables and figures beside it.
    """

    schema_name: Literal["diloco-protocol/certificate"] = Field(alias="schema")
    schema_version: Literal[2]
    regimes: tuple[JudgedRegime, ...]
    claims: tuple[Claim, ...]
    verdict: Verdict
    tier: TierPart
    sentence: str
    replays: tuple[dict[str, Any], ...] | None = None
    gauges: GaugesPart | None = None
    files: dict[str, Sha256] | None = None
    pages: tuple[str, ...] | None = None

    def head(self) -> Head:
        """What was asked, taken back out."""
        own = {key: value for key, value in plain(self).items() if key in Head.model_fields}
        regimes = [{k: v for k, v in regime.items() if k != "seeds"} for regime in own["regimes"]]
        return Head.model_validate({**own, "regimes": regimes})


def json_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a certificate."""
    found = Certificate.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
