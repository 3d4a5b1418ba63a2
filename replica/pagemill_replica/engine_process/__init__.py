"""The engine's own process: its start, its messages, and the client through which the front speaks to it."""
