"""Shared code that needs torch: loading of models, adapters, scoring and replay."""
