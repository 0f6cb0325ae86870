"""Requests that no server may serve, made from a seed: broken JSON, wrong values, broken HTTP."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

PATHS = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True, slots=True)
class BadRequest:
    """Bytes to send. `cut`: HTTP itself is broken, so a closed connection is an answer too."""

    kind: str
    data: bytes = field(repr=False)
    cut: bool = False
    ends: bool = False
    """The sender closes its side after the last byte."""


def make_bad_request(dice: random.Random, model: str) -> BadRequest:
    """Return one at random."""
    if dice.random() < 0.75:
        maker = dice.choice(_BODY_MAKERS)
        body = maker(dice, model)
        return BadRequest(maker.__name__, _post(dice, body, _odd_headers(dice)))
    return dice.choice(_HTTP_MAKERS)(dice, model)


def _valid(dice: random.Random, model: str) -> dict[str, Any]:
    text = "".join(dice.choice('abc é😀\\"\n') for _ in range(dice.randrange(1, 60)))
    message = {"role": "user", "content": text}
    return {"model": model, "messages": [message], "prompt": text, "max_tokens": 1}


def _post(dice: random.Random, body: bytes, headers: str = "", path: str = "") -> bytes:
    path = path or dice.choice(PATHS)
    head = f"POST {path} HTTP/1.1\r\nhost: t\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    return head.encode("latin-1") + body


def _odd_headers(dice: random.Random) -> str:
    odd = (
        "",
        "content-type: application/json\r\n",
        "content-type: text/html; charset=utf-16\r\n",
        "x-request-id: \x80\xff{}\r\n",
        "authorization: Bearer \xff\xfe\r\n",
        "accept: */*;q=nonsense,,\r\n",
        "connection: close, x-forwarded-for\r\n",
        "x-mlxfleet-elapsed-seconds: nan\r\nx-mlxfleet-model: other\r\n",
        "".join(f"x-h{number}: {number}\r\n" for number in range(200)),
    )
    return dice.choice(odd)


def truncated_json(dice: random.Random, model: str) -> bytes:
    whole = json.dumps(_valid(dice, model)).encode()
    return whole[: dice.randrange(len(whole))]


def deep_nesting(dice: random.Random, model: str) -> bytes:
    depth = dice.choice((200, 2_000, 100_000))
    opened, closed = dice.choice((("[", "]"), ('{"a":', "}")))
    value = opened * depth + "1" + (closed * depth if dice.random() < 0.7 else "")
    return b'{"model":"%s","messages":%s,"prompt":%s}' % (
        model.encode(),
        value.encode(),
        value.encode(),
    )


def wrong_type(dice: random.Random, model: str) -> bytes:
    wrong: dict[str, tuple[Any, ...]] = {
        "model": (None, 5, [], {}, True, ""),
        "stream": ("yes", 1.5, [], {}),
        "max_tokens": ([], {}, "many", -1, 1.5),
        "temperature": ([], {}, "hot", -1),
        "top_p": ([], {}, "most", 7),
        "n": ([], {}, "two", 0, -3, 10_000),
        "stop": (5, {}, [1], ["a"] * 9),
        "seed": ([], {}, "x"),
        "logit_bias": (5, "x", {"a": "b"}),
        "frequency_penalty": ([], {}, "x", 100),
        "priority": ([], {}, "x", 10**9),
        "deadline_seconds": ([], {}, "x", -1),
    }
    name = dice.choice(sorted(wrong))
    return json.dumps({**_valid(dice, model), name: dice.choice(wrong[name])}).encode()


def wrong_prompt(dice: random.Random, model: str) -> bytes:
    values = (5, {}, True, [None], [{}], [[]], [{"role": 5}], "", [], [-1], [10**12])
    value = dice.choice(values)
    return json.dumps(
        {"model": model, "messages": value, "prompt": value, "max_tokens": 1}
    ).encode()


def huge_number(dice: random.Random, model: str) -> bytes:
    name = dice.choice(("max_tokens", "temperature", "n", "top_p", "deadline_seconds"))
    number = dice.choice(("1e400", "-1e400", "9" * 400, "-" + "9" * 4_000, "-9" * 1))
    return _with_raw(dice, model, name, number)


def not_a_number(dice: random.Random, model: str) -> bytes:
    value = dice.choice(("NaN", "Infinity", "-Infinity", "+1", "01", ".5", "0x10", "1."))
    return _with_raw(dice, model, "temperature", value)


def invalid_utf8(dice: random.Random, model: str) -> bytes:
    broken = dice.choice((b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"))
    return _with_raw(dice, model, "user", "0").replace(b'"user":0', b'"user":"' + broken + b'"')


def no_object(dice: random.Random, _model: str) -> bytes:
    return dice.choice((b"", b"5", b"[]", b"null", b'"x"', b"true", b" ", b"{}", b"\xef\xbb\xbf{}"))


def random_bytes(dice: random.Random, _model: str) -> bytes:
    return b"\x00" + dice.randbytes(dice.randrange(4_000))


def unknown_model(dice: random.Random, model: str) -> bytes:
    name = dice.choice(("\ud800", "../../etc/passwd", model + "\x00", "m" * 100_000, "😀" * 50))
    return json.dumps({**_valid(dice, model), "model": name}).encode()


def duplicate_keys(dice: random.Random, model: str) -> bytes:
    first = json.dumps(_valid(dice, model))[:-1]
    last = dice.choice(('"model": 5', '"stream": "x"', '"max_tokens": {}', '"n": "x"'))
    return f"{first}, {last}}}".encode()


def _with_raw(dice: random.Random, model: str, name: str, raw: str) -> bytes:
    first = json.dumps({**_valid(dice, model), "max_tokens": None})[:-1]
    return f'{first},"{name}":{raw}}}'.encode()


def wrong_method(dice: random.Random, _model: str) -> BadRequest:
    method = dice.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW", "get"))
    line = f"{method} {dice.choice(PATHS)} HTTP/1.1\r\nhost: t\r\ncontent-length: 0\r\n\r\n"
    return BadRequest("wrong_method", line.encode(), cut=True)


def wrong_path(dice: random.Random, model: str) -> BadRequest:
    path = dice.choice(("/v1/", "/v1/nothing", "/v1/%ff%00", "/v1/../v1/x", "/" + "a" * 9_000))
    body = json.dumps(_valid(dice, model)).encode()
    return BadRequest("wrong_path", _post(dice, body, path=path))


def encoded_body(dice: random.Random, model: str) -> BadRequest:
    encoding = dice.choice(("gzip", "br", "deflate", "gzip, gzip", "nonsense"))
    body = json.dumps(_valid(dice, model)).encode()
    return BadRequest("encoded_body", _post(dice, body, f"content-encoding: {encoding}\r\n"))


def bad_length(dice: random.Random, _model: str) -> BadRequest:
    line = dice.choice(
        (
            "content-length: abc",
            "content-length: -5",
            "content-length: 5\r\ncontent-length: 6",
            "content-length: 5\r\ntransfer-encoding: chunked",
            "content-length: 999999999999999999999999",
            "content-length: 9000000000",
        )
    )
    return _raw_post(dice, "bad_length", line, b"{}")


def short_body(dice: random.Random, _model: str) -> BadRequest:
    return _raw_post(dice, "short_body", "content-length: 5000", b'{"model": "m"')


def bad_chunks(dice: random.Random, _model: str) -> BadRequest:
    body = dice.choice(
        (
            b"ZZZ\r\nnonsense\r\n",
            b"-1\r\n\r\n",
            b"ffffffffffffffffff\r\nx",
            b"5\r\nabcdefgh\r\n0\r\n\r\n",
            b"2\r\n{}\r\n",
            b"2;" + b"x" * 5_000 + b"\r\n{}\r\n0\r\n\r\n",
        )
    )
    return _raw_post(dice, "bad_chunks", "transfer-encoding: chunked", body)


def bad_encoding(dice: random.Random, _model: str) -> BadRequest:
    line = dice.choice(("gzip", "chunked, gzip", "identity", "nonsense", "chunked, chunked"))
    return _raw_post(dice, "bad_encoding", f"transfer-encoding: {line}", b"0\r\n\r\n")


def header_flood(dice: random.Random, _model: str) -> BadRequest:
    kind = dice.randrange(3)
    if kind == 0:
        lines = "\r\n".join(f"x-{number}: y" for number in range(dice.choice((500, 60_000))))
    elif kind == 1:
        lines = "x-long: " + "y" * dice.choice((70_000, 1_000_000))
    else:
        lines = "x" * 500_000 + ": y"
    return _raw_post(dice, "header_flood", f"{lines}\r\ncontent-length: 2", b"{}")


def bad_head(dice: random.Random, _model: str) -> BadRequest:
    data = dice.choice(
        (
            b"GARBAGE\r\n\r\n",
            b"\x00" * 64 + b"\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x55" * 300,
            b"POST /v1/chat/completions HTTP/9.9\r\n\r\n",
            b"POST /v1/chat/completions\r\n\r\n",
            b"POST  HTTP/1.1\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nno colon here\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nx: a\x00b\r\ncontent-length: 0\r\n\r\n",
            dice.randbytes(200),
        )
    )
    return BadRequest("bad_head", data, cut=True, ends=True)


def _raw_post(dice: random.Random, kind: str, lines: str, body: bytes) -> BadRequest:
    head = f"POST {dice.choice(PATHS)} HTTP/1.1\r\nhost: t\r\n{lines}\r\n\r\n"
    return BadRequest(kind, head.encode("latin-1") + body, cut=True, ends=True)


_BODY_MAKERS: tuple[Callable[[random.Random, str], bytes], ...] = (
    truncated_json,
    deep_nesting,
    wrong_type,
    wrong_prompt,
    huge_number,
    not_a_number,
    invalid_utf8,
    no_object,
    random_bytes,
    unknown_model,
    duplicate_keys,
)
_HTTP_MAKERS: tuple[Callable[[random.Random, str], BadRequest], ...] = (
    wrong_method,
    wrong_path,
    encoded_body,
    bad_length,
    short_body,
    bad_chunks,
    bad_encoding,
    header_flood,
    bad_head,
)
