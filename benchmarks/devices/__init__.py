"""How well the time and memory models of devices agree with measurements."""
