"""The recipes for Slurm and Kubernetes say what they should; neither is needed for that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).resolve().parents[2] / "examples" / "cluster"


def shown(recipe: str, *words: str) -> str:
    command = [sys.executable, RECIPES / recipe, "--show", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.slow
def test_the_job_script_asks_slurm_for_workers_of_one_thread() -> None:
    pytest.importorskip("dask_jobqueue")
    lines = shown(
        "slurm.py", "--processes", "4", "--worker-gb", "3", "--queue", "cpu", "--environment", "/shared/venv"
    ).splitlines()
    asked = {"-p cpu", "-n 1", "--cpus-per-task=4", "--mem=12G", "-t 04:00:00"}
    assert asked <= {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")}, lines
    assert "source /shared/venv/bin/activate" in lines
    (worker,) = (line.split() for line in lines if "distributed.cli.dask_worker" in line)
    assert worker[0] == "python"
    for option, value in {"--nthreads": "1", "--nworkers": "4", "--lifetime": "230m"}.items():
        assert worker[worker.index(option) + 1] == value, worker


@pytest.mark.slow
def test_the_kubernetes_resource_has_workers_of_one_thread_and_core() -> None:
    pytest.importorskip("dask_kubernetes.operator")
    made = json.loads(shown("k8s.py", "--image", "registry/protocol:1", "--workers", "5"))
    worker = made["spec"]["worker"]
    assert made["kind"] == "DaskCluster" and worker["replicas"] == 5
    (container,) = worker["spec"]["containers"]
    assert container["image"] == "registry/protocol:1"
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "2Gi"}
    assert container["args"][:4] == ["dask", "worker", "--nthreads", "1"]
