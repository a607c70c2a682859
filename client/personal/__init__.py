"""Personal models: private rounds, and the methods that combine them with the global model."""
