"""HTML, tables and figures made from stored results; computes no result.  May import: ``protocol``."""

DISTRIBUTION = "diloco-protocol"
