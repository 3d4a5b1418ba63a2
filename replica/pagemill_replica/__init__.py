"""A replica: one model on one machine, its KV cache, scheduler and gRPC front."""
