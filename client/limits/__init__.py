"""An owner's limits on a client's answers, and the counts checked against them."""
