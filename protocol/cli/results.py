"""What the Python interface hands back: a finished run, and a simulated seed."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from protocol.certificate.model import Certificate, plain
from protocol.certificate.reading import RAW, read_certificate
from protocol.cli.pages import FIGURES, REPORT
from protocol.cli.remaking import all_wrong
from protocol.cli.simulate import Simulated
from protocol.errors import BadInput
from protocol.evidence import store
from protocol.workload.trace import NS_PER_S
from reports import figures, html, tables


@dataclass(frozen=True)
class Drawn:
    """A figure on disk: `svg` and `pdf`; a notebook shows it."""

    svg: Path
    pdf: Path

    def _repr_svg_(self) -> str:
        return self.svg.read_text("utf-8")


@dataclass(frozen=True)
class Result:
    """A finished run: its certificate and tables, read from `folder` when first asked for.

    Tables are pandas frames of unrounded numbers, units in their names; docs/glossary.md has every column.
    """

    folder: Path

    @cached_property
    def certificate(self) -> Certificate:
        return read_certificate(self.folder)

    @property
    def verdict(self) -> str:
        """PASS, FAIL or INCONCLUSIVE."""
        return self.certificate.verdict

    @property
    def sentence(self) -> str:
        """What the evidence licenses, in words."""
        return self.certificate.sentence

    @property
    def claims(self) -> pd.DataFrame:
        """One row a regime and SLO: verdict, both gains with their intervals, p-values."""
        return tables.frame(tables.claims_table(plain(self.certificate)))

    @property
    def gates(self) -> pd.DataFrame:
        """One row a check of a gate of a claim, with its reason."""
        return tables.frame(tables.gates_table(plain(self.certificate)))

    @property
    def seeds(self) -> pd.DataFrame:
        """One row a seed of a claim, sync-excess violations in percentage points."""
        return tables.frame(tables.seeds_table(plain(self.certificate)))

    @property
    def placements(self) -> pd.DataFrame:
        """One row a schedule that was priced: gaps in decisions, violations by SLO."""
        return self._raw(store.PLACEMENTS)

    @property
    def requests(self) -> pd.DataFrame:
        """One row a request of the policy's replays and of those without merges; times in nanoseconds."""
        return self._raw(store.REQUESTS)

    @property
    def figures(self) -> dict[str, Drawn]:
        """The figures of the report by name."""
        found = sorted((self.folder / FIGURES).glob("*.svg"))
        return {path.stem: Drawn(path, path.with_suffix(".pdf")) for path in found}

    @property
    def report(self) -> Path:
        """The page with everything."""
        return self.folder / REPORT

    def verify(self) -> list[str]:
        """Everything in which the certificate and its raw files differ; empty when they agree."""
        return all_wrong(self.folder)

    def _raw(self, name: str) -> pd.DataFrame:
        path = self.folder / RAW / name
        if not path.is_file():
            raise BadInput(str(path), "no such file", "the raw files of the run")
        return pq.read_table(path).to_pandas()

    def __repr__(self) -> str:
        return f"<{self.verdict}: {self.certificate.contender.name}, {len(self.certificate.claims)} claims>"

    def _repr_html_(self) -> str:
        """Verdict, sentence and claims; the page has the rest."""
        return html.summary(plain(self.certificate), self.report)


class Simulation:
    """One scheduler on one seed; a notebook shows its picture."""

    def __init__(self, found: Simulated) -> None:
        self._found = found

    @property
    def merges(self) -> pd.DataFrame:
        """One row a merge: start_s, busy_s of its longest island, islands that took part, forced by H_max or not."""
        schedule = self._found.rolled.schedule
        longest = schedule.busy_ns.max(axis=1) if len(schedule) else np.empty(0, np.int64)
        forced = np.asarray(self._found.rolled.forced, bool)
        return pd.DataFrame({
            "start_s": schedule.start_s, "busy_s": longest / NS_PER_S, "islands": (schedule.busy_ns > 0).sum(axis=1),
            "forced": forced if len(forced) == len(schedule) else np.zeros(len(schedule), bool),
        })  # fmt: skip

    @property
    def requests(self) -> pd.DataFrame:
        """One row a request, with `violates` under the merges and `violates_idle` without any."""
        found = self._found
        frame = found.measured.to_table().to_pandas()
        return frame.assign(violates=found.measured.violates(found.slo), violates_idle=found.idle.violates(found.slo))

    @property
    def figure(self) -> Figure:
        return self._found.figure

    def __repr__(self) -> str:
        late = int(self._found.measured.violates(self._found.slo).sum())
        name = self._found.setting.name
        return (
            f"<{name}: {len(self._found.rolled.schedule)} merges, {late} of {len(self._found.measured)} requests late>"
        )

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        with figures.styled():
            self.figure.savefig(out, format="png", dpi=110)
        return out.getvalue()
