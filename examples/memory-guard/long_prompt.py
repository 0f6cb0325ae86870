"""Send a prompt of about so many tokens and show the answer, or the refusal with its figures.

Usage: python examples/memory-guard/long_prompt.py TOKENS [BASE_URL]
"""

import sys

import openai

SENTENCE = "The quick brown fox jumps over the lazy dog. "  # ten tokens


def main(tokens: int, base_url: str) -> int:
    """Return 0 when the prompt was answered, 1 when it was refused."""
    client = openai.OpenAI(base_url=base_url + "/v1", api_key="none", max_retries=0, timeout=300)
    with client:
        try:
            answer = client.completions.create(
                model="guarded", prompt=SENTENCE * (tokens // 10), max_tokens=8
            )
        except openai.APIStatusError as refused:
            error = refused.body if isinstance(refused.body, dict) else {}
            print(f"{refused.status_code} {refused.code}")
            for name in ("message", "estimated_bytes", "limit_bytes", "binding", "fitting_tokens"):
                print(f"  {name}: {error.get(name)}")
            return 1
    usage = answer.usage
    print(f"answered a prompt of {usage.prompt_tokens if usage else '?'} tokens")
    return 0


if __name__ == "__main__":
    if len(sys.argv) not in {2, 3}:
        sys.exit(__doc__)
    sys.exit(main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) == 3 else "http://127.0.0.1:7070"))
