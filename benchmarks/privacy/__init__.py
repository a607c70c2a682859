"""Measurements of the information that a server can get from received scalars."""
