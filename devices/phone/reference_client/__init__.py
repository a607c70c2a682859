"""The reference phone client: the phone's side of the protocol with ExecuTorch, numpy and gRPC."""
