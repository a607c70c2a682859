"""Devices: hardware models, live clients, Jetson boards and phones."""
