"""Local training: the model runtime, a client's data, and the local steps of a round."""
