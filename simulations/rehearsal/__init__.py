"""A rehearsal: real processes of server and clients, within the limits of their devices."""
