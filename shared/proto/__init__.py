"""The gRPC service that trainers speak: trainer.proto and what is generated from it."""
