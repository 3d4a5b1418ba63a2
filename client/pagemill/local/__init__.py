"""The whole service on one machine: Redis, replicas and routers as child processes."""
