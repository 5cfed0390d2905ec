"""A replay: the interface to whatever serves, and what it measured under one schedule.

May import: errors, files, merging, parquet, scheduler, workload.
"""
