"""A tiny model: a byte-level tokenizer with one token a byte, a chat template, and its facts."""

from __future__ import annotations

import json

import pytest
from tokenizers import pre_tokenizers

from pagemill.v1 import model_pb2
from pagemill_common.intake import ModelFacts
from pagemill_common.tokenisation import ModelTokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no such role') }}{% endif %}"
    "<{{ m.role }}{{ '/' ~ m.name if m.name }}>{{ m.content }}{% endfor %}{{ mood }}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def build(template: str = TEMPLATE) -> ModelTokenizer:
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    stage = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    spec = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": tokens[i], **flags} for i in (256, 257)],
        "pre_tokenizer": stage,
        "decoder": stage,
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []},
    }
    return ModelTokenizer.from_bundle(
        model_pb2.TokenizerBundle(
            tokenizer_json=json.dumps(spec).encode(),
            chat_template=template,
            bos_token="<s>",
            eos_token="</s>",
            end_of_text_ids=[257],
            add_bos=True,
            bos_token_id=256,
        )
    )


@pytest.fixture(scope="session")
def tokenizer() -> ModelTokenizer:
    return build()


@pytest.fixture(scope="session")
def bare_tokenizer() -> ModelTokenizer:
    """Without a chat template."""
    return build("")


@pytest.fixture
def facts() -> ModelFacts:
    return ModelFacts(
        name="tiny",
        aliases=("small",),
        max_context_tokens=100,
        max_request_tokens=100,
        vocabulary_size=258,
        sampling_defaults=model_pb2.SamplingDefaults(temperature=0.6, top_k=40, top_p=0.9),
        end_of_text_ids=(257,),
        has_chat_template=True,
    )
