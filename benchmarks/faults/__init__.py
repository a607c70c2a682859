"""Runs under kills, cut links, damaged files and hostile clients."""
