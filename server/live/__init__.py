"""A server in the field: Flower's processes, keys, certificates, and what an operator sees."""
