"""What a real server showed under randomised merges, stored and checked.

May import: errors, files, merging, parquet, reading, replay, seeds, workload.
"""
