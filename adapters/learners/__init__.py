"""Small real training runs of many islands.  Training needs torch: the extra `train`."""
