"""Everything foreign made to fit the domain's interfaces.  May import: ``protocol``, not its command line."""

DISTRIBUTION = "diloco-protocol"
