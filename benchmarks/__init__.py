"""Measurements as programs, in folders by question; they run from a checkout."""
