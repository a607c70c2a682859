"""Message transport between server and clients: grids, deadlines, gateways and the roster."""
