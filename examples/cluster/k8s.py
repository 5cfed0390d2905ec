"""A Dask cluster in Kubernetes, for `protocol certify --backend dask --address ADDRESS`.

    pip install 'diloco-protocol[dask]' dask-kubernetes
    helm install --repo https://helm.dask.org --generate-name dask-kubernetes-operator
    python k8s.py --image REGISTRY/protocol:TAG --workers 64     # prints ADDRESS, and stays
    python k8s.py --image REGISTRY/protocol:TAG --show           # prints the resource only

The image has diloco-protocol[dask], the scheduler's file and any traces at the paths that the command names.
"""

from __future__ import annotations

import argparse
import json
import signal
from typing import Any

from dask_kubernetes.operator import KubeCluster, make_cluster_spec


def spec(asked: argparse.Namespace) -> dict[str, Any]:
    """Workers of one thread and one core each: a process holds one opened scheduler."""
    size = {"cpu": "1", "memory": f"{asked.worker_gb}Gi"}
    return make_cluster_spec(
        name=asked.name,
        image=asked.image,
        n_workers=asked.workers,
        resources={"requests": size, "limits": size},
        worker_command=["dask", "worker", "--nthreads", "1"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="protocol")
    parser.add_argument("--image", required=True)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--worker-gb", type=int, default=2, help="memory of one worker")
    parser.add_argument("--show", action="store_true", help="print the resource and start nothing")
    asked = parser.parse_args()
    if asked.show:
        print(json.dumps(spec(asked), indent=2))
        return
    with KubeCluster(custom_cluster_spec=spec(asked)) as made:
        print(made.scheduler_address, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
