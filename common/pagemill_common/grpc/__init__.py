"""The gRPC server and channel runtime that both tiers share."""
