"""Groups of options that belong together; each checks itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from adapters.schedulers.merge_logs import LogReading
from adapters.schedulers.recorded import is_log, spec_of
from adapters.traces.readers import Reading
from protocol.campaign import real
from protocol.certificate import root as roots
from protocol.cli import learning, options
from protocol.cli.reading import Columns, DropBadRows, TimeFormat, Tokens, TraceOptions
from protocol.errors import BadInput

#: Default draws a seed in simulation, and the most that `--draws auto` makes; on a real server each is a real replay.
DRAWS, REAL_DRAWS = 999, 9
MOST_DRAWS = 1_000_000
#: Gain in pp that must be exceeded where nothing is declared: less is no claim that anyone needs.
MIN_EFFECT_PP = 0.5


@dataclass(frozen=True)
class Judging:
    """What is claimed, at which level, on which random streams."""

    slo: options.Slos = None
    alpha: options.Alpha = 0.05
    min_effect: options.MinEffect = MIN_EFFECT_PP
    bounded: Annotated[
        bool, typer.Option("--bounded", help="the bound that assumes no shape of the gains must exceed it, too")
    ] = False
    unconfined: Annotated[
        bool, typer.Option("--unconfined", help="judge although the scheduler's process cannot be confined here")
    ] = False
    seed: options.MaybeSeed = None
    fresh_seed: options.FreshSeed = False
    nonce: Annotated[
        str | None, typer.Option(help="with --fresh-seed: its nonce, to go on with an interrupted run")
    ] = None

    def __post_init__(self) -> None:
        if self.fresh_seed and self.seed is not None:
            raise BadInput("--fresh-seed", f"--seed {self.seed} beside it", "one of the two")
        if self.nonce is not None and not self.fresh_seed:
            raise BadInput("--nonce", "no --fresh-seed", "--fresh-seed beside it")

    def root(self, contender_digest: str, registration: Path | None) -> roots.Root:
        """The root of every random stream; a fresh one follows from what was fixed before it and a nonce."""
        if self.fresh_seed:
            return roots.fresh(contender_digest, roots.digest_in(registration), self.nonce)
        return roots.Root(options.ROOT, "public") if self.seed is None else roots.Root(self.seed, "given")


@dataclass(frozen=True)
class Declared:
    """What the scheduler is given beside what every one gets."""

    environment: Annotated[
        list[str] | None,
        typer.Option(help="a variable for the scheduler's environment, NAME=VALUE, part of its digest; repeatable"),
    ] = None

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        """Raises BadInput on what is no NAME=VALUE, and on a name given twice."""
        found: dict[str, str] = {}
        for text in self.environment or ():
            name, equals, value = text.partition("=")
            if not equals or name in found:
                raise BadInput("--environment", repr(text), "NAME=VALUE, each name once")
            found[name] = value
        return tuple(sorted(found.items()))


@dataclass(frozen=True)
class Worlds:
    """Which regimes and traces."""

    regime: options.Regimes = None
    trace: options.Traces = None
    trace_format: options.TraceFormat = None
    time_unit: options.TimeUnit = None
    time_format: TimeFormat = None
    columns: Columns = None
    tokens: Tokens = None
    drop_bad_rows: DropBadRows = False
    seeds: Annotated[int | None, typer.Option(min=1, help="seeds a regime (default: the regime's, 20)")] = None
    decision_steps: options.DecisionSteps = None

    def __post_init__(self) -> None:
        reading = self.reading
        if not self.trace and reading != Reading():
            first = next(iter(reading.describe()))
            option = "trace-format" if first == "format" else first.replace("_", "-")
            raise BadInput(f"--{option}", "no --trace", "--trace FILE as well")

    @property
    def reading(self) -> Reading:
        """How the traces are to be read.  Raises BadInput."""
        return TraceOptions(
            self.trace_format, self.time_unit, self.time_format, self.columns, self.tokens, self.drop_bad_rows
        ).reading


@dataclass(frozen=True)
class MergeLog:
    """What a merge log does not say, and what is taken from it."""

    fragments: Annotated[
        int | None, typer.Option(min=1, max=1024, help="of the model, where a merge log has commits of single ones")
    ] = None
    corridor: Annotated[
        str | None, typer.Option(help="from-log: H_min, H_max, merge length and horizon are those of the merge log")
    ] = None
    log_zero: Annotated[
        str | None, typer.Option(help="where the trace begins in the merge log: its seconds, or an ISO 8601 time")
    ] = None
    log_stamp: Annotated[str | None, typer.Option(help="what a stamp of the merge log marks: start or end")] = None
    log_merge_s: Annotated[
        float | None, typer.Option(help="seconds of merges whose length the log does not say (default: the regime's)")
    ] = None

    def __post_init__(self) -> None:
        if self.corridor not in (None, "from-log"):
            raise BadInput("--corridor", repr(self.corridor), "from-log")
        if self.log_stamp not in (None, "start", "end"):
            raise BadInput("--log-stamp", repr(self.log_stamp), "start or end")

    def spec(self, scheduler: str) -> str:
        """The scheduler with how to read it, where it is a merge log.  Raises BadInput where it is none."""
        if self == MergeLog():
            return scheduler
        if not is_log(scheduler):
            first = next(name for name, value in vars(self).items() if value is not None).replace("_", "-")
            raise BadInput(f"--{first}", f"{scheduler}, which is no merge log", "a .jsonl or .csv of merges")
        stamp = cast("Literal['start', 'end'] | None", self.log_stamp)
        return spec_of(scheduler, LogReading(self.fragments or 1, stamp, self.log_zero, self.log_merge_s))


@dataclass(frozen=True)
class Draws:
    """Matched random draws a seed."""

    draws: Annotated[
        str | None,
        typer.Option(
            help="matched random draws a seed, each a full simulation; auto: fewer where the claim is lost "
            f"(default: {DRAWS}; with --sidecar {REAL_DRAWS})"
        ),
    ] = None

    def __post_init__(self) -> None:
        text = self.draws
        if text not in (None, "auto") and not (text and text.isdecimal() and 1 <= int(text[:9]) <= MOST_DRAWS):
            raise BadInput("--draws", f"{text!r:.40}", f"a whole number from 1 to {MOST_DRAWS}, or auto")

    @property
    def sequential(self) -> bool:
        return self.draws == "auto"

    def number(self, on_server: bool) -> int:
        """Raises BadInput for `auto` on a server."""
        if on_server and self.sequential:
            raise BadInput("--draws", "auto beside --sidecar", "a number: replays are planned before the first")
        if self.draws in (None, "auto"):
            return REAL_DRAWS if on_server else DRAWS
        return int(self.draws or 0)


@dataclass(frozen=True)
class Learning:
    """A measured learner that schedulers watch."""

    learner: options.Learner = None
    learner_scale: options.LearnerScale = None

    def watched(self) -> learning.Attached | None:
        return learning.attached(self.learner, self.learner_scale)


@dataclass(frozen=True)
class Training:
    """Models trained under the judged schedules, for G4."""

    train_seeds: Annotated[
        int | None, typer.Option(min=3, help="train small models under the schedules of this many seeds (torch)")
    ] = None
    train_factor: Annotated[
        int | None,
        typer.Option(min=1, help=f"with --train-seeds: inner steps to one trained step (default: {learning.FACTOR})"),
    ] = None
    loss_margin: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=0.5,
            help="with --train-seeds: nats by which the policy's final loss may exceed the control's "
            f"(default: {learning.LOSS_MARGIN})",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.train_seeds is None and (self.train_factor is not None or self.loss_margin is not None):
            raise BadInput("--train-factor, --loss-margin", "no --train-seeds", "both only with it: nothing is trained")

    def trainer(self) -> learning.Training | None:
        """Raises ProtocolError without torch."""
        if self.train_seeds is None:
            return None
        margin = learning.LOSS_MARGIN if self.loss_margin is None else self.loss_margin
        return learning.training(self.train_seeds, margin, self.train_factor or learning.FACTOR)


@dataclass(frozen=True)
class Server:
    """How a real server is asked, and what a merge does to its host."""

    model: options.Model = None
    chat: options.Chat = False
    text: options.Text = False
    vocabulary: options.Vocabulary = 32_000
    merge_load: options.MergeLoad = "host"
    server_name: Annotated[str | None, typer.Option(help="how the certificate calls the server")] = None

    def refuse_without(self, sidecar: str | None, **more: object) -> None:
        """Raises BadInput on an option that means nothing in simulation."""
        given = {"model": self.model, "chat": self.chat, "text": self.text, "server-name": self.server_name, **more}
        for name, value in given.items() if sidecar is None else ():
            if value:
                raise BadInput(f"--{name.replace('_', '-')}", f"{value} without --sidecar", "--sidecar URL beside it")


@dataclass(frozen=True)
class Trust:
    """What is fixed beforehand, and signed afterwards."""

    preregister: options.Preregister = None
    registration_note: Annotated[
        str | None, typer.Option(help="with --preregister: what dates it from outside, e.g. a timestamp or a nonce")
    ] = None
    preregistered: options.Preregistered = None
    sign: options.Sign = None

    @property
    def files(self) -> tuple[Path, ...]:
        """What no scheduler may see, and what is no part of it where it lies in its folder."""
        return tuple(p for p in (self.preregister, self.preregistered, self.sign) if p is not None)


@dataclass(frozen=True)
class Output:
    """Where results go."""

    out: options.Out = None
    json: options.Json = False

    def folder(self, name: str) -> Path:
        """`--out`, or runs/NAME."""
        plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[-60:]
        return self.out or Path("runs") / (plain or "scheduler")


#: Attempts at a replay on a real server.
ATTEMPTS = real.ATTEMPTS
