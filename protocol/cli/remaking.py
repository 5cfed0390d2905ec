"""What `verify` makes again offline from a certificate alone, and what it cannot show.

Loads from root and regime, draws from the root, rows and prices from the sidecar's model, schedules from decisions.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adapters.schedulers.confinement import Confinement
from adapters.sidecars.agreement import shown_for
from adapters.sidecars.fitting import check_simulated
from adapters.sidecars.simulated import SidecarModel, SimulatedSidecar, shipped_calibrations, shipped_names
from adapters.traces.worlds import GeneratedWorlds
from protocol import files
from protocol.calibration import store as calibration
from protocol.campaign.again import Sample, differences, live_differences
from protocol.campaign.plan import Contender, Plan, Setting
from protocol.certificate.model import Certificate, Head, RegimePart, plain, versions
from protocol.certificate.reading import RAW, read_certificate, read_json
from protocol.certificate.root import derived
from protocol.certificate.verify import differences as fields_differing
from protocol.certificate.verify import verify
from protocol.cli import options
from protocol.cli.settings import model_of, setting_of
from protocol.errors import ProtocolError
from protocol.evidence import store
from protocol.evidence.model import Evidence
from protocol.reading import read
from protocol.regimes.regime import Regime
from protocol.workload.slo import Slo

#: Placements of an arm and seed whose prices are counted again where nobody asks for all.
PRICED = 32
#: A regime's own number of seeds, which live sessions once left in its digest.
_SEEDS = Regime.model_fields["seeds"].default
Made = Callable[[RegimePart], tuple[Setting, RegimePart] | None]


def recomputed(folder: Path) -> list[str]:
    """Where a certificate, the models of its calibrations among it, is not what the files beside it give."""
    return verify(folder) or list(_carried(folder, read_json(folder)))


def all_wrong(folder: Path) -> list[str]:
    """Everything in which a certificate departs from its raw files, and they from root, regimes and decisions.

    Rows on a real trace are not made again without its file.
    """
    return recomputed(folder) or list(
        contradicting(read_certificate(folder), folder, lambda _: None, every_price=False)
    )


def _carried(folder: Path, stated: dict[str, Any]) -> Iterator[str]:
    """Differences between what a certificate says of its calibrations and what their models and rows give."""
    sound = True
    for carried in sorted((folder / RAW / calibration.CARRIED).glob("*")):
        for line in check_simulated(carried):
            sound = False
            yield line
    for regime in stated["regimes"] if sound else ():
        sidecar = regime["sidecar"]
        if isinstance(sidecar, dict) and sidecar.get("agreement") is not None:
            source = folder / RAW / calibration.carried_as(sidecar["calibration"]["name"])
            again = shown_for(source, [Slo.parse(text) for text in regime["slos"]])
            own = {key: sidecar.get(key) for key in again}
            yield from (f"sidecar of {regime['name']}, {line}" for line in fields_differing(own, again))


def contradicting(certificate: Certificate, folder: Path, made: Made, every_price: bool) -> Iterator[str]:
    """Where a certificate's fields and raw rows do not follow from its root, its regimes and its decisions.

    made : the setting of a regime on a real trace, from the trace's file; None where it was not given.
    """
    head = certificate.head()
    yield from _root(head)
    yield from _confinement(head)
    evidence = store.read(folder / RAW)
    sample = Sample(None if every_price else PRICED, np.random.default_rng(secrets.randbits(128)))
    for regime in head.regimes:
        mine = sorted((e for e in evidence if e.regime == regime.name), key=lambda e: e.seed)
        try:
            if regime.described("trace"):
                setting = yield from _on_trace(regime, made)
            else:
                setting = yield from _generated(head, regime)
            if setting is not None:
                yield from _evidence(head, setting, mine, sample)
        except (ProtocolError, KeyError, TypeError, ValueError, IndexError, ArithmeticError) as error:
            yield f"{regime.name}: cannot be made again ({type(error).__name__}: {error})"


def unproven(certificate: Certificate, folder: Path, made: Made, every_price: bool, rerun: bool) -> Iterator[str]:
    """What verification leaves to trust, a line each."""
    head, settings = certificate.head(), certificate.settings
    if settings.back_end != "simulated":
        name = head.server.name if head.server else "a server"
        yield f"that {name} served these rows: what happened cannot happen again"
    elif not rerun:
        yield (
            "that this scheduler took these decisions, in a second run and in altered futures too: "
            "--rerun SCHEDULER shows it"
        )
    for regime in head.regimes:
        if regime.described("trace") and made(regime) is None:
            yield f"load, draws and prices of {regime.name}: --trace FILE shows them"
    evidence = store.read(folder / RAW)
    placed = max((len(p) for e in evidence for p in e.placed.values()), default=0)
    if settings.back_end != "live" and not every_price and placed > PRICED:
        yield f"prices beyond {PRICED} placements of an arm and seed, drawn anew each time: --all counts every one"
    if any(e.trained for e in evidence):
        yield "that the trained models lost what is stated" + ("" if rerun else ": --rerun SCHEDULER trains them again")
    for stated in {r.sidecar.calibration["name"]: r.sidecar.calibration for r in head.regimes if r.sidecar.calibration}:
        whose = "the shipped one" if _is_shipped(stated, folder) else "not one that is shipped"
        yield f"that a server showed the rows of calibration {stated} ({whose})"
    for regime in head.regimes:
        if (
            regime.name in Regime.names()
            and not regime.described("trace")
            and not _is_shipped_regime(regime, regime.name)
        ):
            yield f"that {regime.name} is the regime shipped under that name: its fields are others"
    yield from _unstated(certificate)
    if head.preregistration is not None:
        yield f"that registration {head.preregistration[:16]} was written before: compare with the file itself"
    if settings.root == "fresh":
        yield "that its nonce was drawn once"
    yield from _versions(certificate)


def _versions(certificate: Certificate) -> Iterator[str]:
    now, then = versions(), certificate.versions
    other = [f"{name} {then.get(name, 'of an unknown version')} (here {now[name]})" for name in sorted(now)
             if then.get(name) != now[name]]  # fmt: skip
    other += [f"{name} {then[name]}, unknown here" for name in sorted(set(then) - set(now) - {"torch"})]
    if other:
        yield f"that other versions count the same: made with {', '.join(other)}"


def _is_shipped(name: str, folder: Path) -> bool:
    carried, shipped = folder / RAW / calibration.carried_as(name), shipped_calibrations().get(name)
    if shipped is None:
        return False
    return all(files.sha256(p) == files.sha256(shipped / p.name) for p in carried.iterdir() if p.is_file())


def _is_shipped_regime(regime: RegimePart, name: str) -> bool:
    own = {"seeds": regime.n_seeds, "decision_steps": regime.corridor.decision_steps}
    return Regime.load(name).replace(**own).digest == regime.digest


def _root(head: Head) -> Iterator[str]:
    """A root that is not what its origin says."""
    s = head.settings
    if s.root == "public" and s.root_seed != options.ROOT:
        yield f"settings.root_seed: stated {s.root_seed} as public, which is {options.ROOT}"
    if s.root == "fresh":
        digest = str(head.contender.described("digest"))
        again = None if s.nonce is None else derived(digest, head.preregistration, s.nonce)
        if again != s.root_seed:
            yield f"settings.root_seed: stated {s.root_seed}, by digest, registration and nonce {again}"


def _unstated(certificate: Certificate) -> Iterator[str]:
    """What a certificate of a scheduler that ran says nothing of."""
    if certificate.contender.kind != "recorded" and certificate.contender.described("confinement") is None:
        yield "what the scheduler's process could reach: the certificate does not say how it was confined"


def _confinement(head: Head) -> Iterator[str]:
    stated = head.contender.described("confinement")
    if stated is not None:
        again = Confinement.read(stated).describe()
        yield from fields_differing(stated, again, "contender.confinement")


def _on_trace(regime: RegimePart, made: Made) -> Generator[str, None, Setting | None]:
    """The setting of a regime on a real trace, where its file was given."""
    file, shipped = (regime.described("trace") or {}).get("file"), Regime.names()
    if regime.name != f"trace:{file}" and not regime.name.endswith(f" on {file}"):
        yield f"{regime.name}, trace: a regime of this name does not take its load from {file!r}"
    if any(_is_shipped_regime(regime, name) for name in shipped):
        yield f"{regime.name}, digest: that of a shipped regime, whose load is generated"
    found = made(regime)
    if found is None:
        return None
    setting, described = found
    yield from fields_differing(plain(regime), plain(described), regime.name)
    return setting


def _generated(head: Head, part: RegimePart) -> Generator[str, None, Setting | None]:
    """The setting that a regime's own fields declare; what contradicts itself among them on the way."""
    measured = (part.described("learner") or {}).get("kind") == "measured"
    regime = _regime(part, measured)
    if regime is None:
        yield f"{part.name}, digest: not that of the fields beside it"
        return None
    if regime.corridor() != part.corridor.corridor():
        yield f"{part.name}, corridor: another than pace and horizon give"
    setting = setting_of(regime, GeneratedWorlds(regime, head.settings.root_seed), part.slos)
    if not measured and setting.learner.tokens_per_step != part.tokens_per_step:
        yield f"{part.name}, tokens_per_step: stated {part.tokens_per_step}, by its learner {regime.learner}"
    if head.settings.back_end == "live":
        return setting
    model = yield from _model(part, regime)
    return replace(setting, sidecar=SimulatedSidecar(model), further=head.settings.predicted)


def _model(part: RegimePart, regime: Regime) -> Generator[str, None, SidecarModel]:
    """The simulated sidecar as a certificate states it; where it is not the one that the regime names on the way."""
    stated = part.sidecar
    values = {k: v for k, v in plain(stated).items() if k in SidecarModel.model_fields}
    model = read(SidecarModel, values, f"sidecar {stated.name}")
    if stated.described("digest") != model.digest:
        yield f"{part.name}, sidecar.digest: stated {stated.described('digest')}, of its parameters {model.digest}"
    own = model_of(regime)
    if stated.calibration is None and (own.name, own.digest) != (model.name, model.digest):
        yield f"{part.name}, sidecar: {model.name} is not {own.name} with what the regime changes of it"
    return model


def _regime(part: RegimePart, measured: bool) -> Regime | None:
    """The regime that a certificate describes; None where no sidecar gives its digest.

    A certificate states the sidecar that served; which one the regime itself names, its digest tells.
    """
    values: dict[str, Any] = {k: v for k, v in plain(part).items() if k in Regime.model_fields}
    values |= {k: getattr(part.corridor, k) for k in ("h_min", "h_max", "decision_steps")}
    values |= part.described("pace") or {}
    if measured:  # the regime's digest covers the modelled one that it replaced
        values["learner"] = (part.described("learner") or {}).get("modelled")
    names = dict.fromkeys([part.sidecar.name.removesuffix("-altered"), part.sidecar.name, *shipped_names()])
    for name, n_seeds in itertools.product(names, {part.n_seeds, _SEEDS}):
        found = Regime.described({**values, "sidecar": name, "seeds": n_seeds}, part.name)
        if found.digest == part.digest:
            return found.replace(seeds=part.n_seeds)
    return None


def _evidence(head: Head, setting: Setting, evidence: Sequence[Evidence], sample: Sample) -> Iterator[str]:
    s = head.settings
    if s.back_end == "live":
        yield from live_differences(s.root_seed, setting, evidence)
        return
    plan = Plan(_nobody, head.contender.name, s.root_seed, s.draws, s.control_draws, s.probes, s.sequential)
    yield from differences(plan, setting, head.contender.kind, evidence, sample)


def _nobody() -> Contender:
    raise AssertionError("verification opens no scheduler")
