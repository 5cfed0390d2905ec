"""What every test returns: evidence beside the p-value, and a reason where there is none."""

from __future__ import annotations

from dataclasses import dataclass

#: Two sums closer than this share of the values' own size are tied, and a tie counts as extreme as the observed.
#: It must cover rounding (about 1e-16 times the number of terms) and stay below any real difference of rates.
RTOL = 1e-12


@dataclass(frozen=True)
class Interval:
    """Confidence limits; either may be infinite when the test cannot exclude that side."""

    lower: float
    upper: float
    level: float
    method: str


@dataclass(frozen=True)
class TestOutcome:
    """One test's outcome.

    statistic : what was compared, in the units of the data; None when undecidable.
    pvalue : in (0, 1], one-sided for "lower cost is better" unless the test says otherwise; None when undecidable.
    n : number of independent units (seeds, runs or pairs).
    floor : smallest p-value that this test could have given with this n.
    null : the reference distribution, in words.
    n_null : size of the reference set (all of it when exact, else what was sampled); None for a closed form.
    exact : whether the reference set was enumerated or known in closed form.
    reason : why there is no p-value; None when there is one.
    """

    __test__ = False  # not a test class, whatever its name

    name: str
    statistic: float | None
    pvalue: float | None
    n: int
    floor: float | None
    null: str
    n_null: int | None
    exact: bool
    reason: str | None = None

    @property
    def decidable(self) -> bool:
        return self.pvalue is not None


def undecidable(name: str, n: int, reason: str, null: str = "") -> TestOutcome:
    """An outcome without a p-value: never an error, never a pass."""
    return TestOutcome(name, None, None, n, None, null, None, False, reason)
