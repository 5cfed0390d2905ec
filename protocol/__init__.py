"""The domain: traces, corridors, schedules, schedulers, gates and certificates.

May import: itself, numpy, scipy, statsmodels, pyarrow, pandas, joblib, numba.  Never ``adapters``,
``baselines`` or ``reports``; only ``protocol.cli``, the composition root, knows those.

In Python and notebooks: ``certify``, ``sweep``, ``simulate``, ``compare`` and ``load`` (docs/python.md).  They
belong to the composition root, which is imported when the first of them is asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protocol.cli.api import certify, compare, load, simulate, sweep

__all__ = ["certify", "compare", "load", "simulate", "sweep"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'protocol' has no attribute {name!r}")
    from protocol.cli import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
