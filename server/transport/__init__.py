"""How messages reach clients: Flower's grid, deadlines, phones behind gateways, who is there."""
