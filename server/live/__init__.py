"""The live server: Flower's processes, client keys, certificates, and status for the operator."""
