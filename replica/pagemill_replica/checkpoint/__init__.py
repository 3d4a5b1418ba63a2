"""Models on disk, read without torch: Hugging Face folders and GGUF files."""

from pagemill_replica.checkpoint.checkpoint import Checkpoint
from pagemill_replica.checkpoint.config import Family, GenerationDefaults, ModelConfig
from pagemill_replica.checkpoint.errors import CheckpointError
from pagemill_replica.checkpoint.open import open_checkpoint

__all__ = ["Checkpoint", "CheckpointError", "Family", "GenerationDefaults", "ModelConfig", "open_checkpoint"]
