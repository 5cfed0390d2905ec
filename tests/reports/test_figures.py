"""Figures: the same bytes for the same results, and what they show is what is stored."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from sample_certificate import HOSTILE, N_REQUESTS, build, measurements

from protocol.evidence.model import OPTIMUM
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import FAILED, Measurements
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace
from reports import figures


def test_files_of_every_claim(tmp_path: Path) -> None:
    certificate, evidence = build(("a", "b/../c"), seeds=2, draws=9)
    drawn = figures.write_figures(certificate, evidence, tmp_path / "figures")
    names = ["envelope-01-a", "envelope-02-b-c", "envelopes", "gain-overview"]
    assert sorted(drawn) == names
    assert sorted(p.name for p in (tmp_path / "figures").iterdir()) == [
        f"{n}.{s}" for n in names for s in ("pdf", "svg")
    ]
    assert all(
        path.suffix == ".svg" and ElementTree.parse(path).getroot().tag.endswith("svg") for path in drawn.values()
    )


def test_same_bytes_whatever_the_users_settings(tmp_path: Path) -> None:
    certificate, evidence = build((HOSTILE,), seeds=3, draws=9)
    figures.write_figures(certificate, evidence, tmp_path / "one")
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "none", "axes.grid": False}):
        figures.write_figures(certificate, evidence, tmp_path / "two")
    assert dict(matplotlib.rcParams) == before
    for path in (tmp_path / "one").iterdir():
        data = path.read_bytes()
        assert data == (tmp_path / "two" / path.name).read_bytes()
        assert b"CreationDate" not in data and b"dc:date" not in data and b"matplotlib.org" not in data


def test_other_results_give_other_bytes(tmp_path: Path) -> None:
    certificate, _ = build(seeds=2, draws=9)
    one = figures.save(figures.gain_overview(certificate), tmp_path / "one").read_bytes()
    certificate["claims"][0]["envelope"]["gain_pp"] += 0.2
    assert figures.save(figures.gain_overview(certificate), tmp_path / "two").read_bytes() != one


def test_excess_by_hand() -> None:
    _, evidence = build(slos=("e2e<=1s", "ttft<=1s"), seeds=1, draws=3)
    e = evidence[0]
    for column in (0, 1):
        idle = int(e.placed[NO_SYNC].violations[0, column])
        by_hand = [100 * (int(v[column]) - idle) / N_REQUESTS for v in e.placed[UNIFORM].violations]
        assert figures.excess_pp(e, UNIFORM, column, "e2e<=1s") == pytest.approx(by_hand)
    assert len(figures.excess_pp(e, "no such arm", 0, "e2e<=1s")) == 0


def test_the_envelope_draws_the_stored_points_of_its_own_slo() -> None:
    certificate, evidence = build(slos=("e2e<=1s", "ttft<=1s"), seeds=4, draws=9)
    figure = figures.envelope_figure(certificate["claims"][1], evidence, 1)
    best, policy = (line.get_ydata() for line in figure.axes[0].lines[:2])
    for i, e in enumerate(evidence):
        idle = e.placed[NO_SYNC].violations[0, 1]
        assert policy[i] == pytest.approx(100 * (e.placed[POLICY].violations[0, 1] - idle) / N_REQUESTS)
        # Row k of the optimum was planned for SLO k.
        assert best[i] == pytest.approx(100 * (e.placed[OPTIMUM].violations[1, 1] - idle) / N_REQUESTS)


@pytest.mark.parametrize("arm", [UNIFORM, OPTIMUM])
def test_a_missing_arm_is_left_out(arm: str) -> None:
    certificate, evidence = build(seeds=2, draws=9)
    full = _boxes(figures.envelope_figure(certificate["claims"][0], evidence, 0))
    without = {key: placed for key, placed in evidence[0].placed.items() if key != arm}
    evidence[0] = replace(evidence[0], placed=without)
    figure = figures.envelope_figure(certificate["claims"][0], evidence, 0)
    assert _boxes(figure) == full - 3 * (arm == UNIFORM) and full == 6
    assert np.isnan(figure.axes[0].lines[0].get_ydata()[0]) == (arm == OPTIMUM)


def _boxes(figure: Figure) -> int:
    """Bands of draws, all seeds together."""
    return sum(len(c.get_paths()) for c in figure.axes[0].collections if isinstance(c, PolyCollection))


def test_nothing_measured_gives_no_figure(tmp_path: Path) -> None:
    certificate, evidence = build(envelope=False, tier=0, seeds=1, draws=1)
    assert figures.write_figures(certificate, evidence, tmp_path) == {}


def _replay(n: int = 4_000) -> tuple[RequestTrace, Measurements]:
    m = measurements(np.random.default_rng(3), n)
    outcome = np.zeros(n, np.int8)
    outcome[:3] = FAILED
    columns = {c: getattr(m, c) for c in m.__dataclass_fields__}
    m = Measurements(**{**columns, "outcome": outcome, "e2e_ns": np.where(outcome, -1, m.e2e_ns)})
    return RequestTrace(m.arrival_ns, m.prompt_tokens, m.output_tokens), m


def test_timeline_shows_every_request_and_merge(tmp_path: Path) -> None:
    trace, m = _replay()
    schedule = Schedule.all_islands(np.array([40, 200, 500]) * 10**9, 8 * 10**9)
    slo = Slo.parse("e2e<=1s")
    figure = figures.timeline(trace, schedule, m, slo, 600 * 10**9)
    load, merges, latency = figure.axes
    missed = int(m.violates(slo).sum())
    drawn = [len(line.get_xdata()) for line in latency.lines[:3]]
    assert drawn == [4_000 - missed, missed - 3, 3]
    assert [tuple(p.vertices[[0, 2], 0]) for p in merges.collections[0].get_paths()] == [
        (40, 48),
        (200, 208),
        (500, 508),
    ]
    assert f"{missed} miss" in load.get_title(loc="left")
    assert sum(patch.get_data().values.sum() for patch in load.patches[:1]) == pytest.approx(4_000)
    assert figures.save(figure, tmp_path / "timeline") == tmp_path / "timeline.svg"


@pytest.mark.parametrize("slo", ["e2e<=1s", "ttft<=200ms,itl<=50ms"])
def test_timeline_without_requests_or_merges(tmp_path: Path, slo: str) -> None:
    m = measurements(np.random.default_rng(3), 0)
    trace = RequestTrace(m.arrival_ns, m.prompt_tokens, m.output_tokens)
    figure = figures.timeline(trace, Schedule.empty(), m, Slo.parse(slo), 10**9)
    figures.save(figure, tmp_path / "timeline")


def test_timeline_of_peer_merges(tmp_path: Path) -> None:
    trace, m = _replay(50)
    busy = np.zeros((3, 20), np.int64)
    busy[np.arange(3), [0, 7, 19]] = busy[np.arange(3), [1, 8, 2]] = 10**9
    figure = figures.timeline(trace, Schedule(np.arange(3) * 5 * 10**9, busy), m, Slo.parse("e2e<=1s"), 10**11)
    assert sum(len(c.get_paths()) for c in figure.axes[1].collections) == 6
    figures.save(figure, tmp_path / "timeline")


#: Linear RGB as it is seen without one kind of cone (Machado, Oliveira and Fernandes 2009, severity 1).
CONES = {
    "red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    "none": np.eye(3).tolist(),
}


def lab(colour: str, cones: str) -> Any:
    """CIE Lab of `#rrggbb`, as it is seen."""
    srgb = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(CONES[cones]) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    x, y, z = np.cbrt(np.maximum(xyz / [0.9505, 1.0, 1.089], 0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("cones", CONES)
def test_every_pair_of_roles_is_told_apart_without_a_kind_of_cone(cones: str) -> None:
    css = (Path(figures.__file__).parent / "templates" / "report.css").read_text("utf-8")
    dark = re.findall(r"--(?:draws|policy|optimum): (#\w{6})", css)
    light = [figures.DRAWS, figures.POLICY_COLOUR, figures.OPTIMUM_COLOUR]
    assert len(dark) == 9 and dark[:3] == light
    for roles in (light, dark[3:6]):
        for a, b in itertools.combinations(roles, 2):
            assert np.linalg.norm(lab(a, cones) - lab(b, cones)) > 15, (a, b)


@pytest.mark.parametrize(("width", "inches", "most"), [("column", 3.17, 5), ("page", 6.5, 9)])
def test_a_set_of_claims_is_lettered_and_fits_a_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, width: Any, inches: float, most: int
) -> None:
    names = tuple(f"regime-{k}" for k in range(10))
    certificate, evidence = build(names, seeds=2, draws=9)
    shown = [(claim, [e for e in evidence if e.regime == claim["regime"]], 0) for claim in certificate["claims"]]
    with figures.styled():
        figure = figures.envelope_set(shown[:most], width)
        rest = figures.envelope_set(shown[most:], width, most)
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.lines]
    assert [title[:3] for title in titles] == [f"({letter})" for letter in "abcdefghi"[:most]]
    assert rest.axes[0].get_title(loc="left").startswith(f"({'abcdefghij'[most]}) regime-{most}")
    assert tuple(figure.get_size_inches()) == (inches, pytest.approx(figure.get_size_inches()[1]))
    assert figure.get_size_inches()[1] <= 7 and figures.lettered(26) == "(aa)"
    monkeypatch.setattr(figures, "save", lambda figure, stem: stem)  # which takes seconds
    if width == "column":
        drawn = figures.write_figures(certificate, evidence, tmp_path, width)
        assert {"envelopes", "envelopes-2"} <= set(drawn)
