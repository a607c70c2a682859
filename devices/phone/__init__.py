"""Phones: exported programs, the gateway that phones attach to, and a reference client."""
