"""What the front tells the engine process at its start."""

from __future__ import annotations

from dataclasses import dataclass

from pagemill_replica.engine.testing import Script

SCRIPTED = "scripted:"
"""A model path that begins so names a made-up model: what follows is its script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of the engine process; the replica's settings are checked before and carry the documentation."""

    model_path: str
    """A Hugging Face folder, a GGUF file, or `scripted:` and a script."""
    model_id: str = ""
    """The model's identity in hexadecimal, for block hashes; empty: the engine finds it."""
    model_name: str = ""
    """The served name, for spans."""
    fake_runner: str = ""
    """Hidden, for tests of everything around the engine: the script of a made-up model that runs in place of the
    weights at `model_path`, such as `vocab=49152,delay=0.01`; see `pagemill_replica.engine.testing.Script`."""
    dtype: str = "auto"
    """float32, bfloat16, float16 or auto."""
    device: str = "cpu"
    deterministic: bool = False
    """Tokens do not depend on what else runs."""
    block_size: int = 16
    """Tokens in a block of the KV cache."""
    kv_memory_bytes: int | None = None
    """Memory for the KV cache; None: from what is available."""
    max_context: int | None = None
    """Most tokens of prompt and output; None: the model's own limit."""
    token_budget: int | None = None
    """Most tokens in a step; None: what suits the device."""
    max_running: int | None = None
    """Most sequences in a step; None: 256, or the token budget where it is smaller."""
    watermark: float = 0.01
    """Share of the blocks left idle when a request is admitted beside others."""
    threads: int | None = None
    """CPU threads; None: as many as the process may use."""
    cache_dir: str | None = None
    """Where compiled kernels and the hashes of weight files are kept; None: the user's cache folder."""
    otlp_endpoint: str | None = None
    """Where spans go; None: OTEL_EXPORTER_OTLP_ENDPOINT, else nowhere."""
    instance: str = ""
    """The replica's name, for logs and spans."""
    log_format: str = "auto"
    log_level: str = "info"

    @property
    def script(self) -> Script | None:
        """The made-up model to run, where one is named. Raises ValueError for a broken script."""
        if self.model_path.startswith(SCRIPTED):
            return Script.parse(self.model_path.removeprefix(SCRIPTED))
        return Script.parse(self.fake_runner) if self.fake_runner else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The first line on the engine's standard input, as JSON."""

    config: EngineConfig
    to_engine: str
    """Where the engine fetches its messages."""
    from_engine: str
    """Where the engine sends its messages."""
