"""The decoder and how its weights are loaded."""

from pagemill_replica.model.decoder import Decoder
from pagemill_replica.model.loading import load

__all__ = ["Decoder", "load"]
