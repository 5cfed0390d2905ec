"""What runs showed, as raw files: everything that gates read and nothing that they compute; kept when killed.

May import: errors, files, merging, parquet, replay, seeds, workload.
"""
