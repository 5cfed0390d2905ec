"""torchft's DiLoCo, merging when a scheduler says so: the same file that was certified, the same decision everywhere.

One coordinator (beside the lighthouse) owns the scheduler's process and the log; replicas ask it over TCP, and the
first of them to come to a decision asks for all.  `coordinator` and `client` need no torch, `diloco` needs the extra
`torchft`.
"""
