"""The text and the chat templates behind the tiny tokenizer; the licence file adds the bulk."""

TEXT = """
You are a helpful assistant. What is the capital of France? The capital of France is Paris.
Write a short story about a small dog and an old tree. Once upon a time there was a dog who lived
under a tree. Tell me a joke, explain how a computer works, and count to ten: one, two, three,
four, five, six, seven, eight, nine, ten. Yes, no, please, thank you, hello, good morning.
The quick brown fox jumps over the lazy dog. 0 1 2 3 4 5 6 7 8 9 10 100 1000 2026
def add(first, second):
    return first + second
{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}
{"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
Été, Straße, niño, привет, 日本語, 你好, 🙂
word number memory model token prompt cache block engine node request answer question system user
"""

PLAIN_TEMPLATE = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

MARKERS_TEMPLATE = """\
{% if tools %}<|im_start|>system
Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}{% for tool_call in message.tool_calls or [] %}\
{% set tool_call = tool_call.function or tool_call %}<tool_call>
{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
