"""The domain: traces, corridors, schedules, schedulers, gates and certificates.

May import: itself, numpy, scipy, statsmodels, pyarrow, pandas, joblib, numba.  Never ``adapters``,
``baselines`` or ``reports``; only ``protocol.cli``, the composition root, knows those.
"""
