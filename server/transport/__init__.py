"""Messages between server and clients: grids, deadlines, phones behind gateways, and the roster."""
