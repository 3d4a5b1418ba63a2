"""The engine: scheduler, paged KV cache and core loop, free of any device or transport."""
