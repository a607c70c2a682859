"""Messages between server and clients: Flower's grid, deadlines, gateways' phones, the roster."""
