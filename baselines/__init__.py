"""The schedulers of the papers and better ones, as ordinary schedulers.  May import: ``protocol``."""

DISTRIBUTION = "diloco-protocol"
