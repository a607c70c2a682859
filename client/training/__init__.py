"""Local training: the loaded model, a client's data, and the steps of a round."""
