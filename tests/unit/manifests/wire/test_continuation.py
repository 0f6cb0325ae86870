"""A continuation is one line of JSON and the client's body as it came."""

import pytest

from manifests.wire.continuation import Continuation, ToldRow, pack, unpack

HEAD = Continuation(
    path="/v1/completions", id="a", created=1, fingerprint="f", rows=(None, ToldRow(ids=(1, 2)))
)


def test_head_and_body_come_back_as_they_were() -> None:
    body = b'{\n "a": "\xc3\xa4\n"}\n'
    assert unpack(pack(HEAD, body)) == (HEAD, body)


@pytest.mark.parametrize("data", [b"", b"{}", b"{}\n", b"SECRET\nx", b'{"rows": "SECRET"}\n'])
def test_what_is_no_continuation_is_refused_without_showing_it(data: bytes) -> None:
    with pytest.raises(ValueError, match="continuation") as caught:
        unpack(data)
    assert "SECRET" not in str(caught.value)
