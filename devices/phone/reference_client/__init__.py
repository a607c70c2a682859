"""The phone's side of the protocol in Python: the runtime, numpy and gRPC, nothing else."""
