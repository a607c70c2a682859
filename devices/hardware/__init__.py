"""Models of device hardware: profiles, the time of a step, memory, and links."""
