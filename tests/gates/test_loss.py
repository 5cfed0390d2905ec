"""G4's validation loss: numbers by hand, files with what was trained, and what verification finds in them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from strategies import FunctionSource, changed, head_for, quiet, ran, setting, write_folder

from protocol import files
from protocol.certificate.assess import assess
from protocol.certificate.model import Certificate, GatePart, Head
from protocol.certificate.reading import CERTIFICATE, RAW
from protocol.certificate.verify import verify
from protocol.errors import BadInput
from protocol.evidence import store as evidence
from protocol.evidence.model import Evidence
from protocol.evidence.trained import TRAINED, Trained
from protocol.gates.loss import loss_check
from protocol.gates.result import Check
from protocol.replay.replay import POLICY, UNIFORM


def runs(seed: int, policy: float, control: float = 2.0, tokens: int = 6400) -> dict[str, Trained]:
    return {
        POLICY: Trained("toy", seed, POLICY, 100, 6400, policy),
        UNIFORM: Trained("toy", seed, UNIFORM, tokens // 64, tokens, control),
    }


def trained(*policy: float) -> list[Evidence]:
    """Ten seeds, the first of which were trained; the control always ends at 2."""
    return [changed(e, trained=runs(e.seed, policy[e.seed]) if e.seed < len(policy) else {}) for e in ran()]


def judged(*policy: float, margin: float = 0.25, n: int | None = None) -> Check:
    return loss_check(trained(*policy), len(policy) if n is None else n, margin, 0.05)


# Differences 0.25, 0.5 and 0.75: mean 0.5, standard error 0.25 / sqrt(3), t table with 2 degrees of freedom 2.919986.
HALF = 2.919986 * 0.25 / math.sqrt(3)


@pytest.mark.parametrize(
    ("margin", "status"), [(0.93, "passed"), (0.92, "undecidable"), (0.08, "undecidable"), (0.07, "failed")]
)
def test_the_limits_by_hand(margin: float, status: str) -> None:
    check = judged(2.25, 2.5, 2.75, margin=margin)
    assert check.status == status and check.statistic == 0.5 and check.n == 3
    assert check.interval == pytest.approx((0.5 - HALF, 0.5 + HALF), rel=1e-6)
    assert check.details["policy"] == [2.25, 2.5, 2.75] and check.details["control"] == [2.0] * 3


def test_differences_that_do_not_vary_decide_nothing() -> None:
    assert judged(2.25, 2.25, 2.25).status == "undecidable"
    assert judged(2.0, 2.0, 2.0, margin=0.0).status == "undecidable"  # as when nothing was trained
    assert judged(1.0, 1.0, 1.1, margin=0.0).status == "passed"  # a lower loss is no harm, whatever the margin


def test_training_that_no_merge_can_show_in_is_undecidable() -> None:
    merges = int(ran()[0].placed[POLICY].lengths[0])
    for steps, status in ((merges - 1, "undecidable"), (merges, "passed")):
        found = []
        for e, loss in zip(ran(), (2.0, 1.9, 1.8), strict=False):
            both = {
                arm: Trained("toy", e.seed, arm, steps, 64 * steps, value)
                for arm, value in ((POLICY, loss), (UNIFORM, 2.0))
            }
            found.append(changed(e, trained=both))
        assert loss_check(found, 3, 0.25, 0.05).status == status


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_undecidable(value: float) -> None:
    check = judged(1.0, value, 1.0)
    assert check.status == "undecidable" and "seed 1" in check.reason
    files.canonical_json(check.details)  # a certificate may hold it


def test_missing_or_few_seeds_are_undecidable() -> None:
    assert judged(1.0, 1.0).status == "undecidable"
    few = judged(1.0, 1.0, 1.0, n=4)
    assert few.status == "undecidable" and few.reason == "3 of 4 seeds were trained under both schedules"
    assert judged(n=3).status == "undecidable"


def test_unequal_training_fails() -> None:
    found = trained(1.0, 1.0, 1.0)
    found[2] = changed(found[2], trained=runs(2, 1.0, tokens=704))
    check = loss_check(found, 3, 0.25, 0.05)
    assert check.status == "failed"
    assert "seed 2: trained on 6400 tokens in 100 steps, the control 704 in 11" in check.reason


# In a certificate --------------------------------------------------------------------------------------------------


def head() -> Head:
    return head_for(FunctionSource(quiet), [setting()], train={"seeds": 3, "loss_margin": 0.25})


def progress(certificate: Certificate) -> GatePart:
    return next(g for g in certificate.claims[0].gates if g.gate == "G4")


def test_the_check_decides_claims() -> None:
    good, bad = (assess(head(), trained(*losses)) for losses in ((1.0, 1.1, 1.2), (3.0, 3.1, 3.2)))
    assert good.verdict == "PASS" and [c.name for c in progress(good).checks][-1] == "validation loss"
    assert bad.verdict == "FAIL" and "G4 training progress" in bad.claims[0].reason
    assert "nats" in bad.sentence
    plain = assess(head_for(FunctionSource(quiet), [setting()]), list(ran()))
    assert len(progress(plain).checks) == 2


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    write_folder(folder, head(), trained(1.0, 1.1, math.nextafter(1.2, 2)))
    return folder


def edited(folder: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> list[str]:
    """What verification says once the rows are changed and the digest in the certificate is renewed."""
    path = folder / RAW / TRAINED
    table = pq.read_table(path)
    pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), table.schema), path)
    certificate = json.loads((folder / CERTIFICATE).read_text())
    certificate["files"][TRAINED] = files.sha256(path)
    files.write_text(folder / CERTIFICATE, files.canonical_json(certificate))
    return verify(folder)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda rows: [{**rows[0], "validation_loss": math.nextafter(1.0, 2)}, *rows[1:]], "details.policy[0]"),
        (lambda rows: [{**rows[0], "validation_loss": math.nan}, *rows[1:]], 'recomputed "undecidable"'),
        (lambda rows: rows[1:], 'recomputed "undecidable"'),
        (lambda rows: [{**rows[0], "tokens": 641}, *rows[1:]], 'recomputed "failed"'),
        (lambda rows: [*rows, rows[0]], "seed 0 uniform, seed 0 policy; expected"),
        (lambda rows: [{**rows[0], "arm": "other"}, *rows[1:]], "seed 0 other, seed 0 uniform; expected"),
        (lambda rows: [{**rows[0], "seed": 10}, *rows[1:]], "seed 10"),
    ],
)
def test_edits_are_found_even_with_the_digest_renewed(original: Path, tmp_path: Path, change: Any, what: str) -> None:
    assert verify(original) == []
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    found = edited(tmp_path, change)
    assert any(what in line for line in found), found


def test_a_missing_file_and_foreign_columns_are_found(original: Path, tmp_path: Path) -> None:
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    path = tmp_path / RAW / TRAINED
    pq.write_table(pq.read_table(path).drop_columns(["tokens"]), path)
    with pytest.raises(BadInput, match="columns regime, seed"):
        evidence.read(tmp_path / RAW)
    path.unlink()
    found = verify(tmp_path)
    assert f"{RAW}/{TRAINED}: missing" in found and len(found) > 1
