"""What runs the processes: what is refused before any work, and what a lost worker costs."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from protocol.campaign import run as campaign
from protocol.certificate.model import versions
from protocol.cli import backend
from protocol.cli.backend import Backend
from protocol.errors import BadInput, ProtocolError


@pytest.mark.parametrize(
    "given, words",
    [
        (("spark", None), "--backend: found 'spark'; expected one of loky, dask, ray"),
        (("loky", "tcp://h:1"), "--address: found 'tcp://h:1' without a cluster"),
        (("dask", "h:8786"), "--address: found 'h:8786'; expected a Dask scheduler's"),
    ],
)
def test_what_makes_no_cluster_is_refused(given: tuple[str, str | None], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Backend(*given)


@pytest.mark.parametrize("name, module", [("dask", "distributed"), ("ray", "ray")])
def test_a_missing_package_is_named_with_its_remedy(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with (
        pytest.raises(ProtocolError, match=rf"needs {module}: pip install 'diloco-protocol\[{name}\]'"),
        Backend(name).started(1),
    ):
        raise AssertionError("nothing was refused")


def test_workers_of_other_versions_are_refused() -> None:
    backend._refuse_others({"tcp://a:1": versions()})
    with pytest.raises(BadInput, match=r"tcp://b:1: found numpy 1\.0; expected .*, as here"):
        backend._refuse_others({"tcp://a:1": versions(), "tcp://b:1": {**versions(), "numpy": "1.0"}})
    with pytest.raises(BadInput, match="tcp://c:1: found a worker that cannot run protocol"):
        backend._refuse_others({"tcp://c:1": ModuleNotFoundError("No module named 'protocol'")})


def _square(number: int, folder: str, deaths: int) -> int:
    """The square; of three, only once so many processes have died of it."""
    died = Path(folder) / str(os.getpid())
    if number == 3 and len(list(Path(folder).iterdir())) < deaths:
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2


def test_a_lost_worker_is_made_up_for(tmp_path: Path) -> None:
    tasks = [(_square, (n, str(tmp_path), 1)) for n in range(6)]
    with campaign._workers(2) as results:
        assert list(results(tasks)) == [n**2 for n in range(6)]
        assert list(results(tasks[:2])) == [0, 1]
    assert len(list(tmp_path.iterdir())) == 1


def test_work_that_ends_every_worker_is_given_up_in_one_line(tmp_path: Path) -> None:
    tasks = [(_square, (n, str(tmp_path), 99)) for n in range(6)]
    found = []
    lost = "a worker process was lost 4 times .*the same command goes on"
    with pytest.raises(ProtocolError, match=lost), campaign._workers(2) as results:
        found.extend(results(tasks))
    assert found == [n**2 for n in range(len(found))] and len(found) <= 3
