"""The client's side of the protocol: sessions, replies to frames, and the trainer service."""
