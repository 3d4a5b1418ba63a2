"""What routers and replicas share."""
