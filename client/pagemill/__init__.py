"""LLM inference over gRPC: the client library."""
