"""Which tokens end a text.

The rule. A token ends the text where at least one of these holds:

1. generation_config or config name it (`eos_token_id`, one or several);
2. it is the tokenizer's own end-of-text token;
3. GGUF metadata name it as end of turn or end of message (`eot_token_id`, `eom_token_id`);
4. it is a *special* token called by one of `END_OF_TEXT_NAMES`, the names by which chat templates end a turn and
training data a
   document. A token that merely spells such a name is ordinary text.

Point 4 is there because many checkpoints name only one of their end tokens: a chat model whose config says
`<|endoftext|>` ends its turns with `<|im_end|>`, and would talk to itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["END_OF_TEXT_NAMES", "end_of_text_ids"]

END_OF_TEXT_NAMES = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|eom|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|END_OF_TURN_TOKEN|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|EOT|>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 - so it is spelled
)


def end_of_text_ids(named: Iterable[int | None], special: Mapping[str, int], vocabulary_size: int) -> list[int]:
    """Ids by the rule, rising. `named` are those of points 1 to 3; ids outside the vocabulary are left out."""
    ids = {token_id for token_id in named if token_id is not None and 0 <= token_id < vocabulary_size}
    ids.update(special[name] for name in END_OF_TEXT_NAMES if name in special)
    return sorted(ids)
