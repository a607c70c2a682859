"""Measurements beside the predictions of devices' time and memory models."""
