"""Where requests wait for room: bounded, in order of priority and arrival."""
