"""A Dask cluster of Slurm jobs, for `protocol certify --backend dask --address ADDRESS`.

    pip install 'diloco-protocol[dask]' dask-jobqueue
    python slurm.py --jobs 8 --processes 32 --queue cpu --environment /shared/venv     # prints ADDRESS, and stays
    python slurm.py --processes 32 --show                                               # prints the job script only

Run it where jobs can reach this host (a login node), in a folder that the nodes share.  Ctrl-C ends the jobs.
"""

from __future__ import annotations

import argparse
import signal

from dask_jobqueue import SLURMCluster


def cluster(asked: argparse.Namespace) -> SLURMCluster:
    """Workers of one thread each: a process holds one opened scheduler, and one thread does its work."""
    return SLURMCluster(
        cores=asked.processes,
        processes=asked.processes,
        memory=f"{asked.processes * asked.worker_gb}GB",
        walltime=asked.walltime,
        queue=asked.queue,
        interface=asked.interface,
        job_script_prologue=[f"source {asked.environment}/bin/activate"] if asked.environment else [],
        # What `activate` puts first on the path; without, the interpreter of this script.
        python="python" if asked.environment else None,
        # A worker leaves before its job is ended, and hands back what it has not begun.
        worker_extra_args=["--lifetime", f"{asked.lifetime_min}m", "--lifetime-stagger", "2m"],
        scheduler_options={"dashboard_address": None},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="Slurm jobs")
    parser.add_argument("--processes", type=int, default=16, help="workers of one job, one core each")
    parser.add_argument("--worker-gb", type=int, default=2, help="memory of one worker")
    parser.add_argument("--walltime", default="04:00:00")
    parser.add_argument("--lifetime-min", type=int, default=230, help="minutes after which a worker leaves by itself")
    parser.add_argument("--queue", help="Slurm partition")
    parser.add_argument("--interface", help="network interface between nodes, e.g. ib0")
    parser.add_argument("--environment", help="virtual environment that the nodes share")
    parser.add_argument("--show", action="store_true", help="print the job script and submit nothing")
    asked = parser.parse_args()
    with cluster(asked) as made:
        if asked.show:
            print(made.job_script())
            return
        made.scale(jobs=asked.jobs)
        print(made.scheduler_address, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
