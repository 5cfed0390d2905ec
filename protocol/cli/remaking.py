"""What `verify` makes again offline from a certificate alone, and what it cannot show.

Loads from root and regime, draws from the root, rows and prices from the sidecar's model, schedules from decisions.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adapters.schedulers.confinement import Confinement
from adapters.sidecars.simulated import SidecarModel, SimulatedSidecar, shipped_calibrations, shipped_names
from adapters.traces.worlds import GeneratedWorlds
from protocol import files
from protocol.calibration import store as calibration
from protocol.campaign.again import Sample, differences, live_differences
from protocol.campaign.plan import Contender, Plan, Setting
from protocol.certificate.model import Certificate, Head, RegimePart, plain, versions
from protocol.certificate.reading import RAW
from protocol.certificate.root import derived
from protocol.certificate.verify import differences as fields_differing
from protocol.cli import options
from protocol.cli.settings import model_of, setting_of
from protocol.errors import BadInput, ProtocolError
from protocol.evidence import store
from protocol.evidence.model import Evidence
from protocol.reading import read
from protocol.regimes.regime import Regime

#: Placements of an arm and seed whose prices are counted again where nobody asks for all.
PRICED = 32
Made = Callable[[RegimePart], tuple[Setting, RegimePart] | None]


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
        except ProtocolError as error:
            yield f"{regime.name}: cannot be made again ({error})"


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
        if regime.name in Regime.names() and not regime.described("trace") and not _is_shipped_regime(regime):
            yield f"that {regime.name} is the regime shipped under that name: its fields are others"
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


def _is_shipped_regime(regime: RegimePart) -> bool:
    own = {"seeds": regime.n_seeds, "decision_steps": regime.corridor.decision_steps}
    return Regime.load(regime.name).replace(**own).digest == regime.digest


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


def _confinement(head: Head) -> Iterator[str]:
    stated = head.contender.described("confinement")
    if stated is not None:
        again = Confinement.read(stated).describe()
        yield from fields_differing(stated, again, "contender.confinement")


def _on_trace(regime: RegimePart, made: Made) -> Generator[str, None, Setting | None]:
    """The setting of a regime on a real trace, where its file was given."""
    found = made(regime)
    if found is None:
        return None
    setting, described = found
    yield from fields_differing(plain(regime), plain(described), regime.name)
    return setting


def _generated(head: Head, part: RegimePart) -> Generator[str, None, Setting | None]:
    """The setting that a regime's own fields declare; what contradicts itself among them on the way."""
    stated = part.sidecar
    model = read(SidecarModel, {k: plain(stated)[k] for k in SidecarModel.model_fields}, f"sidecar {stated.name}")
    if stated.described("digest") != model.digest:
        yield f"{part.name}, sidecar.digest: stated {stated.described('digest')}, of its parameters {model.digest}"
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
    own = model_of(regime)
    same_version = head.versions.get("diloco-protocol") == versions()["diloco-protocol"]
    if same_version and stated.name == own.name and stated.calibration is None and own.digest != model.digest:
        yield f"{part.name}, sidecar: other parameters than {own.name} has with what the regime changes of it"
    return replace(setting, sidecar=SimulatedSidecar(model))


def _regime(part: RegimePart, measured: bool) -> Regime | None:
    """The regime that a certificate describes; None where no sidecar gives its digest.

    A certificate states the sidecar that served; which one the regime itself names, its digest tells.
    """
    values: dict[str, Any] = {k: v for k, v in plain(part).items() if k in Regime.model_fields}
    values |= {k: getattr(part.corridor, k) for k in ("h_min", "h_max", "decision_steps")} | {"seeds": part.n_seeds}
    if measured:  # no digest covers what replaced the modelled one, and nothing here reads either
        values["learner"] = Regime.load("ordinary").learner.model_dump(mode="json")
    for name in dict.fromkeys([part.sidecar.name.removesuffix("-altered"), part.sidecar.name, *shipped_names()]):
        try:
            found = Regime.described({**values, "sidecar": name}, part.name)
        except BadInput as error:
            if name in shipped_names():
                raise error
            continue
        if found.digest == part.digest or measured:
            return found
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
