"""A real model says the same with drafts as without, and drafts come true."""

import pytest

from manifests.prompt.worker import load_tokenizer
from node_agent.engine.messages import Generate, Heartbeat, SamplingParams
from tests.support.fleet import SMOLLM2
from tests.support.mlx_engine import bare_engine
from tests.support.pools import token_ids

pytestmark = pytest.mark.processes

TEXT = "Boats come in one after another, and the men on the quay take the ropes without looking up."


def test_a_real_model_says_the_same_with_drafts_and_some_come_true():
    assert SMOLLM2.is_dir(), "run `make models` first"
    messages = [{"role": "user", "content": f"Repeat this text word for word: {TEXT}"}]
    prompt = load_tokenizer(SMOLLM2).apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    samplings = {
        "greedy": SamplingParams(temperature=0),
        "drawn": SamplingParams(temperature=0.6, seed=3, top_p=0.9, frequency_penalty=0.1),
    }
    said: dict[bool, list[list[int]]] = {}
    for drafts in (False, True):
        with bare_engine(SMOLLM2, drafts=drafts) as engine:
            rows = [
                Generate(request_id=name, prompt=list(prompt), max_tokens=40, sampling=sampling)
                for name, sampling in samplings.items()
            ]
            # One after the other, so that each decodes alone.
            said[drafts] = [token_ids(engine.run(row)[row.request_id]) for row in rows]
            engine.await_event(Heartbeat)
            beat = engine.await_event(Heartbeat)
            assert (beat.accepted_tokens > 5) == drafts
    assert said[True] == said[False]
