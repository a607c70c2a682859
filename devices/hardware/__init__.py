"""Device hardware: profiles, the time model, memory, and links."""
