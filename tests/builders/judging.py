"""Certify a scheduler written as text: through the campaign, or through the command line's entry point."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from adapters.schedulers import open_scheduler, sandbox
from adapters.schedulers.confinement import WITHOUT
from adapters.traces.readers import Reading
from protocol.campaign import arms as campaign
from protocol.campaign import run as campaign_run
from protocol.campaign.plan import Contender, Plan, Setting
from protocol.certificate.assess import assess
from protocol.certificate.model import Head, RegimePart, plain, versions
from protocol.cli.main import main
from protocol.cli.settings import Overrides, describe_contender, settings_for
from protocol.errors import ProtocolError
from protocol.evidence.model import Evidence
from protocol.replay.replay import POLICY

ROOT_SEED = 20260601
#: A load-aware scheduler without any trick: what a cheat that got nowhere decides.
INNOCENT = "def decide(obs):\n    return obs.in_flight < 4\n"


_spec = importlib.util.spec_from_file_location("small_world", Path(__file__).parents[1] / "end_to_end" / "conftest.py")
assert _spec is not None and _spec.loader is not None
#: The fixtures of the end-to-end tests, by path: several folders here have a `conftest`.
small_world = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(small_world)


@dataclass(frozen=True)
class Judged:
    """What came of it.  `refusal` : the one-line error, None when there is a certificate."""

    refusal: str | None
    certificate: dict[str, Any] = field(default_factory=dict)
    found: Sequence[Evidence] = ()
    log: str = ""
    code: int | None = None
    errors: str = ""

    @property
    def reason(self) -> str:
        """Why nothing is licensed: the refusal, or the certificate's own sentence."""
        return self.refusal if self.refusal is not None else str(self.certificate["sentence"])

    @property
    def refused(self) -> bool:
        return self.refusal is not None or self.certificate["tier"]["number"] == 0

    @property
    def unsound(self) -> bool:
        """The machine lacks what G0 rests on, and G0 says so: whatever the row did, nothing is licensed."""
        gates = [] if self.refusal is not None else self.certificate["claims"][0]["gates"]
        return any(g["gate"] == "G0" and g["status"] == "undecidable" for g in gates) and bool(WITHOUT)

    @property
    def gaps(self) -> list[list[int]]:
        """The policy's placements, seed by seed."""
        return [e.placed[POLICY].gaps.tolist() for e in self.found]

    def check(self, name: str, gate: str = "G0") -> dict[str, Any]:
        gates = self.certificate["claims"][0]["gates"]
        checks = next(g["checks"] for g in gates if g["gate"] == gate)
        return next(c for c in checks if c["name"] == name)


Command = Callable[..., Judged]


class Judge:
    """Certifies texts in the small world, one seed and three draws unless told otherwise."""

    def __init__(self, regime: Path, folder: Path) -> None:
        self.regime, self.folder, self.log = regime, folder, folder / "scheduler.log"
        self._before = set(sandbox.children())
        self._opened: list[Contender] = []

    def __call__(
        self,
        code: str,
        name: str = "cheat.py",
        *,
        spec: str | None = None,
        seeds: int = 1,
        root_seed: int = ROOT_SEED,
        sidecar: Any = None,
        **options: Any,
    ) -> Judged:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
        settings, described = self.settings(seeds, root_seed)
        if sidecar is not None:
            settings = [replace(s, sidecar=sidecar(s.sidecar)) for s in settings]
        options = {"decision_timeout_s": 1.0, "memory_limit_mb": 256, "log_path": self.log} | options
        opener = partial(self._open, spec or str(path), **options)
        plan = Plan(opener, path.name, root_seed, draws=3, control_draws=3)
        try:
            head = self._head(opener(), settings, described, root_seed)
            found = campaign_run.run(plan, settings, jobs=1)
        except ProtocolError as error:
            message = str(error)
            assert "\n" not in message and "Traceback" not in message
            return Judged(message, log=self.printed())
        return Judged(None, plain(assess(head, found)), found, self.printed())

    def _open(self, spec: str, **options: Any) -> Contender:
        self._opened.append(open_scheduler(spec, **options))
        return self._opened[-1]

    def settings(self, seeds: int = 1, root_seed: int = ROOT_SEED) -> tuple[list[Setting], list[RegimePart]]:
        return settings_for([str(self.regime)], [], Reading(), root_seed, Overrides(seeds=seeds))

    def printed(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def close(self) -> None:
        """Close what the campaign holds open; nothing that any scheduler started may be left."""
        for source in self._opened:
            source.close()
        campaign.close_contenders()
        assert not set(sandbox.children()) - self._before

    @staticmethod
    def _head(contender: Contender, settings: list[Setting], described: list[RegimePart], root_seed: int) -> Head:
        asked = {
            "alpha": 0.05, "control_draws": 3, "draws": 3, "min_effect_pp": 0.0, "probes": 1, "root_seed": root_seed,
        }  # fmt: skip
        return Head.model_validate({
            "contender": describe_contender(contender, settings), "settings": asked, "versions": versions(),
            "regimes": [plain(regime) for regime in described],
        })  # fmt: skip


def command(out: Path, *arguments: object) -> Judged:
    """`protocol ARGUMENTS` in this process: what it printed, its exit code and the certificate in `out`."""
    printed, errors, code = io.StringIO(), io.StringIO(), 0
    opened: list[Contender] = []

    def opening(*args: Any, **options: Any) -> Contender:
        opened.append(open_scheduler(*args, **options))
        return opened[-1]

    with (
        mock.patch("protocol.cli.settings.open_scheduler", opening),
        mock.patch.object(sys, "argv", ["protocol", *map(str, arguments)]),
        mock.patch.dict("os.environ", {"COLUMNS": "200", "NO_COLOR": "1"}),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as exit_:
            code = int(exit_.code or 0)
    for source in opened:
        source.close()
    campaign.close_contenders()
    assert "Traceback" not in printed.getvalue() + errors.getvalue()
    log, made = out / "scheduler.log", out / "certificate.json"
    text = log.read_text(errors="replace") if log.exists() else ""
    if code == 2:
        lines = [line for line in errors.getvalue().splitlines() if line.strip()]
        assert not made.exists() and not (out / "report.html").exists()
        return Judged(lines[-1], log=text, code=code, errors=errors.getvalue())
    return Judged(None, json.loads(made.read_text()), (), text, code, errors.getvalue())


def confined(rows: Iterable[str], which: Set[str]) -> list[Any]:
    """Rows as parameters, those marked that may come out otherwise where a part of the sandbox is missing."""
    names = list(rows)
    assert which <= set(names)
    return [pytest.param(name, marks=pytest.mark.confined) if name in which else name for name in names]


def same_placements(one: Judged, other: Judged) -> bool:
    return [np.array(g).tolist() for g in one.gaps] == [np.array(g).tolist() for g in other.gaps]
