"""The gRPC services of trainers and gateways: trainer.proto and the code generated from it."""
