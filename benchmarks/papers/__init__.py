"""Tables of the papers beside measurements or predictions of this machine."""
