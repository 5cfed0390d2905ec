"""`python -m protocol` is the command line."""

from protocol.cli import main

main()
