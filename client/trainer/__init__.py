"""The resident trainer's service and its socket."""
