"""The command line: the composition root, and the only part of ``protocol`` that knows the other packages.

May import: everything.
"""

from protocol.cli.main import main

__all__ = ["main"]
