"""Carries a replica's frames to the caller, and owns what can go wrong on the way."""
