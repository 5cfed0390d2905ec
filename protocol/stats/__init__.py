"""Statistics: arrays in, small frozen results out; NumPy, SciPy and statsmodels.  May import: nothing of `protocol`."""
