"""The client's side of the protocol: sessions, and replies to frames."""
