"""A tokenizer with one token a letter, and an engine that only notes what it is told."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pagemill.v1 import model_pb2
from pagemill_common.tokenisation import ModelTokenizer
from pagemill_replica.engine.messages import Submit
from pagemill_replica.engine_process.client import EngineGoneError

LETTERS = "abcdefghijklmnopqrstuvwxyz"
END = 26
"""The end-of-text token."""


@dataclass
class NotedEngine:
    """Stands for the engine process's client."""

    submitted: list[Submit] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    gone: bool = False

    def submit(self, m: Submit) -> None:
        if self.gone:
            raise EngineGoneError("the engine has gone")
        self.submitted.append(m)

    def abort(self, key: int) -> None:
        self.aborted.append(key)


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine() -> NotedEngine:
    return NotedEngine()


@pytest.fixture(scope="session")
def tokenizer() -> ModelTokenizer:
    """`a` is 0 and so on; END is special."""
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(LETTERS)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    bundle = model_pb2.TokenizerBundle(tokenizer_json=backend.to_str().encode(), end_of_text_ids=[END])
    return ModelTokenizer.from_bundle(bundle)
