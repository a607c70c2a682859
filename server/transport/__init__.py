"""Messages between server and clients: grids, deadlines, phones behind gateways, the roster."""
