"""Room for a request: reservations in Redis, or what the replicas say while Redis is gone."""
