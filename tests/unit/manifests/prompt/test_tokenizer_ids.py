import pytest
from transformers import AutoTokenizer

from tests.support.local_text import LocalText
from tests.support.tiny_tokenizers import FAMILIES

CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello  world 👋"},
]


@pytest.mark.parametrize("family", FAMILIES)
async def test_chat_ids_are_those_of_apply_chat_template(
    texts: dict[str, LocalText], family: str
) -> None:
    """B23: the start token comes once, by the template or not at all."""
    text = texts[family]
    expected = text.tokenizer.apply_chat_template(
        CHAT, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    ids = await text.encode_chat(CHAT, None, {})
    assert ids == expected
    start = text.ready.bos_token_id
    assert ids.count(start) == (1 if family == "fallback" else 0)


@pytest.mark.parametrize("family", FAMILIES)
async def test_prompt_ids_are_those_of_the_tokenizer(
    texts: dict[str, LocalText], family: str
) -> None:
    """B23: a plain prompt gets the start token that its tokenizer adds by itself."""
    text = texts[family]
    assert await text.encode_texts(["hello world"]) == [text.tokenizer("hello world").input_ids]


@pytest.mark.parametrize("family", ["fallback", "metaspace"])
async def test_a_prompt_that_spells_out_the_start_token_gets_no_second(
    texts: dict[str, LocalText], family: str
) -> None:
    """B23: legacy completions with a literal start token."""
    text = texts[family]
    [ids] = await text.encode_texts(["<s>hello"])
    assert ids.count(text.ready.bos_token_id) == 1


async def test_end_tokens_come_from_config_and_tokenizer(texts: dict[str, LocalText]) -> None:
    text = texts["byte_level"]
    assert text.ready.defaults.eos_token_ids == sorted({2, text.tokenizer.eos_token_id})


def test_auto_tokenizer_is_what_the_worker_loads(texts: dict[str, LocalText]) -> None:
    path = texts["metaspace"].tokenizer.name_or_path
    assert type(AutoTokenizer.from_pretrained(path)) is type(texts["metaspace"].tokenizer)
