"""A finished run for other tools: MLflow, Weights & Biases, RO-Crate, each by its own package (an extra)."""

from __future__ import annotations

import datetime
import importlib
import mimetypes
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from protocol.errors import BadInput, ProtocolError
from protocol.files import CERTIFICATE, SIGNATURE, names_in

#: What of a claim is a number that other tools can plot.
METRICS = ("gain_pp", "lower_bound_pp", "load_gain_pp", "load_lower_bound_pp", "p", "p_holm", "optimum_gain_pp",
           "gain_captured", "requests_saved_per_sidecar_per_10_min", "n_seeds", "n_draws")  # fmt: skip
_SETTINGS = ("back_end", "root", "root_seed", "alpha", "min_effect_pp", "draws", "idle", "sequential", "bounded")


def metrics(certificate: Mapping[str, Any]) -> dict[str, float]:
    """Every known number of METRICS by `REGIME/SLO/NAME`, in characters that every tool takes; limits apart."""
    found: dict[str, float] = {}
    for claim in certificate["claims"]:
        where = f"{_word(claim['regime'])}/{_word(claim['slo'].replace('<=', ' at most '))}"
        values = {name: claim["envelope"][name] for name in METRICS}
        for name in ("interval_pp", "load_interval_pp"):
            for side, limit in zip(("low", "high"), claim["envelope"][name] or (), strict=False):
                values[f"{name.removesuffix('_pp')}_{side}_pp"] = limit
        found |= {f"{where}/{name}": float(value) for name, value in values.items() if value is not None}
    return found


def parameters(certificate: Mapping[str, Any]) -> dict[str, str]:
    """What was asked, and the verdict, as short words."""
    settings, contender = certificate["settings"], certificate["contender"]
    asked = {name: settings[name] for name in _SETTINGS if name in settings}
    asked |= {"scheduler": contender["name"], "scheduler_digest": contender.get("digest", ""),
              "regimes": ", ".join(r["name"] for r in certificate["regimes"]), "verdict": certificate["verdict"],
              "tier": certificate["tier"]["number"]}  # fmt: skip
    return {name: str(value)[:500] for name, value in asked.items()}


def to_mlflow(certificate: Mapping[str, Any], folder: Path, project: str) -> str:
    """Log one run: numbers, parameters and the whole folder.  Where to, MLFLOW_TRACKING_URI says.

    Returns where it lies.  Raises ProtocolError where MLflow is not installed, or refuses.
    """
    mlflow = _package("mlflow", "mlflow")
    with _refusing("mlflow", mlflow.MlflowException):
        return _logged(mlflow, certificate, folder, project)


def _logged(mlflow: Any, certificate: Mapping[str, Any], folder: Path, project: str) -> str:
    experiment = mlflow.set_experiment(project)
    with mlflow.start_run(experiment_id=experiment.experiment_id, run_name=_name(certificate)) as run:
        mlflow.log_params(parameters(certificate))
        mlflow.log_metrics(metrics(certificate))
        mlflow.set_tag("sentence", certificate["sentence"])
        for name in _files(certificate, folder):
            mlflow.log_artifact(str(folder / name), str(Path(name).parent) if "/" in name else None)
    return f"run {run.info.run_id} of experiment {project!r} in {mlflow.get_tracking_uri()}"


def to_wandb(certificate: Mapping[str, Any], folder: Path, project: str) -> str:
    """Log one run: numbers, parameters and the folder as an artifact.  WANDB_MODE=offline keeps it here.

    Returns where it lies.  Raises ProtocolError where wandb is not installed, or refuses.
    """
    wandb = _package("wandb", "wandb")
    asked = {"project": project, "name": _name(certificate), "config": parameters(certificate)}
    with _refusing("wandb", wandb.Error), wandb.init(**asked) as run:
        run.summary.update({**metrics(certificate), "sentence": certificate["sentence"]})
        artifact = wandb.Artifact(_word(f"certificate {_name(certificate)}"), type="certificate")
        for name in _files(certificate, folder):
            artifact.add_file(str(folder / name), name=name)
        run.log_artifact(artifact)
        where = str(run.url or run.dir)
    return where


def to_ro_crate(certificate: Mapping[str, Any], folder: Path, out: Path) -> str:
    """Write an RO-Crate 1.1 with every file of the run and what they are.

    Raises ProtocolError where rocrate is not installed, BadInput where `out` is there already.
    """
    crates, context = _package("rocrate.rocrate", "ro-crate"), _package("rocrate.model.contextentity", "ro-crate")
    if out.exists():
        raise BadInput(str(out), "something that is there already", "a new folder for the crate")
    crate = crates.ROCrate()
    crate.name = f"Certificate of merge placement: {_name(certificate)}"
    crate.description = certificate["sentence"]
    made = datetime.datetime.fromtimestamp((folder / CERTIFICATE).stat().st_mtime, datetime.UTC)
    crate.datePublished = made
    held = []
    for name in _files(certificate, folder):
        kind = mimetypes.guess_type(name)[0] or "application/vnd.apache.parquet"
        digest = (certificate.get("files") or {}).get(name.removeprefix("raw/"))
        known = {"sha256": digest} if digest and name.startswith("raw/") else {}
        held.append(
            crate.add_file(str(folder / name), name, properties={"name": name, "encodingFormat": kind, **known})
        )
    program = {"@type": "SoftwareApplication", "name": "diloco-protocol",
               "softwareVersion": certificate["versions"].get("diloco-protocol", "unknown")}  # fmt: skip
    tool = crate.add(context.ContextEntity(crate, "#diloco-protocol", properties=program))
    action = {"@type": "CreateAction", "name": f"protocol {certificate['settings'].get('back_end', 'simulated')} run",
              "description": certificate["sentence"], "endTime": made.isoformat()}  # fmt: skip
    ran = crate.add(context.ContextEntity(crate, "#run", properties=action))
    ran["instrument"], ran["result"] = tool, held
    crate.root_dataset["mentions"] = [ran]
    crate.write(str(out))
    return str(out)


def _files(certificate: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """The run's own files: certificate, signature, pages and raw files; nothing else that lies there."""
    listed = {CERTIFICATE, SIGNATURE, *(certificate.get("pages") or ())}
    listed |= {f"raw/{name}" for name in certificate.get("files") or ()}
    yield from (name for name in names_in(folder) if name in listed)


def _name(certificate: Mapping[str, Any]) -> str:
    return str(certificate["contender"]["name"])


def _word(text: str) -> str:
    """Letters, digits, dots, dashes and underscores alone."""
    return re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip("-") or "unnamed"


@contextmanager
def _refusing(extra: str, error: type[Exception]) -> Iterator[None]:
    """What a package refuses, as one line."""
    try:
        yield
    except error as refusal:
        raise ProtocolError(f"--{extra}: {' '.join(str(refusal).split())[:300]}") from None


def _package(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ProtocolError(f"--{extra} needs the extra: pip install 'diloco-protocol[{extra}]'") from None
