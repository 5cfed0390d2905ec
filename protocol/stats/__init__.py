"""Statistics: arrays in, small frozen results out.  May import: numpy, scipy, statsmodels."""
