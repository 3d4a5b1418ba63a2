"""Text to tokens and back, for routers and replicas alike: `tokenizers` and jinja2, no torch, no transformers."""

from __future__ import annotations

from pagemill_common.tokenisation.detokeniser import Detokeniser, TextDelta
from pagemill_common.tokenisation.errors import TemplateError, TokenizerError
from pagemill_common.tokenisation.model_tokenizer import ModelTokenizer
from pagemill_common.tokenisation.template import ChatTemplate, TemplateLimits

__all__ = [
    "ChatTemplate",
    "Detokeniser",
    "ModelTokenizer",
    "TemplateError",
    "TemplateLimits",
    "TextDelta",
    "TokenizerError",
]
