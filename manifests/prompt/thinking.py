"""Which marks a model puts around its thinking.

Pure. The tokenizer process finds a model's style when it loads; `Model.spec.reasoningParser` may
name another. The agent cuts answers at the marks.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """The text that opens thinking and the text that closes it."""

    start: str
    end: str


THINK_TAGS: Mapping[str, ThinkTags] = {
    "think": ThinkTags("<think>", "</think>"),
    "longcat": ThinkTags("<longcat_think>", "</longcat_think>"),
    "seed": ThinkTags("<seed:think>", "</seed:think>"),
    "colon": ThinkTags("<|think:start|>", "<|think:end|>"),
    "mistral": ThinkTags("[THINK]", "[/THINK]"),
    "gemma": ThinkTags("<|channel>thought", "<channel|>"),
}
"""By the names that `reasoningParser` knows, in the order in which a model is asked for them."""

_TOKENS = {"gemma": ("<|channel>", "<channel|>")}
"""The tokens of a style, where they are not its tags."""


def style_tokens(style: str) -> tuple[str, ...]:
    """Return the tokens of a style that a vocabulary may have."""
    tags = THINK_TAGS[style]
    return _TOKENS.get(style, (tags.start, tags.end))


MARK_TOKENS = frozenset(token for style in THINK_TAGS for token in style_tokens(style))
"""Tokens that are text even where a tokenizer calls them special: an answer is cut at them."""


def find_style(vocabulary: Container[str], template: str) -> str:
    """Return the name of the tags that a model knows, empty when it knows none.

    A model knows tags that are tokens of it, or whose end its chat template names.
    """
    for style, tags in THINK_TAGS.items():
        if all(token in vocabulary for token in style_tokens(style)) or tags.end in template:
            return style
    return ""


def choose_tags(parser: str, found: str) -> ThinkTags | None:
    """Return the tags to cut at, for what a Model declares and the style found in its files."""
    style = found if parser == "auto" else parser
    return THINK_TAGS.get(style)
