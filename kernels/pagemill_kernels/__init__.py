"""Operators of the decoder, for CPUs and GPUs."""
