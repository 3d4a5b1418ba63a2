"""Where a request should go: pure functions from a snapshot of the fleet to ranked candidates."""
