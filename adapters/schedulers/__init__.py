"""Schedulers from files, processes and logs."""
