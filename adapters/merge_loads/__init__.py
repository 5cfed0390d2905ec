"""What occupies the host while a merge runs on a real sidecar: processes that start and stop on the schedule."""
