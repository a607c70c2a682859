"""The models for an owner's questions, and the service that answers them."""
