"""One module a gate.  May import: protocol.stats and the domain types."""
