"""Finished runs held against each other, client by client."""
