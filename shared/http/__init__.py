"""The guard, connections, tokens and sockets that Samara's HTTP servers share."""
