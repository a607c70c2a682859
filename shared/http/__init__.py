"""What Samara's HTTP servers share: guard, connections, tokens, and sockets."""
