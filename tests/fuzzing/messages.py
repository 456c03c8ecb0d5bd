"""HTTP messages that are nearly right: put together from parts that parsers disagree about, then damaged and cut."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

CORPUS = Path(__file__).parent / "corpus"

_HEADERS = [
    b"Host: x", b"Host: y", b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: 4", b"content-length:5",
    b"Content-Length: +5", b"Content-Length: 0x5", b"Content-Length: 5, 5", b"Content-Length: 5 ",
    b"Content-Length : 5",
    b"Content-Length: 99999999999999999999", b"Content-Length: -1", b"Content-Length:\t5", b"Content-Length: 5\x00",
    b"Transfer-Encoding: chunked", b"transfer-encoding: Chunked", b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: \x0bchunked", b"Transfer-Encoding:\tchunked", b"Transfer-Encoding: xchunked", b"X: a\r\n b",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x", b"Connection: close", b"Connection: keep-alive",
    b"Connection: Upgrade", b"Upgrade: websocket", b"Upgrade: h2c", b"Expect: 100-continue", b"Expect: 200-ok",
    b"Trailer: Host", b": empty", b"no colon", b"X-\xff\xfe: \xff", b"X: " + b"v" * 9000, b"TE: trailers",
    b"Authorization: Bearer " + b"t" * 40, b"Proxy-Connection: x", b"\x00: x", b"X:\ry", b"X:\ny", b"Cookie: a=b; c=d",
]  # fmt: skip
_ENDS = [b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\r\n", b""]
_BODIES = [
    b"", b"hello", b"hell", b"5\r\nhello\r\n0\r\n\r\n", b"5\nhello\n0\n\n", b"0\r\n\r\n", b"05\r\nhello\r\n0\r\n\r\n",
    b"5;a=b\r\nhello\r\n0\r\nX-Late: 1\r\n\r\n", b"-1\r\nx\r\n0\r\n\r\n", b"5 \r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\nx\r\n0\r\n\r\n", b"5\r\nhelloX0\r\n\r\n", b"0\r\nHost: z\r\n\r\n",
    b"5\r\nhello\r\n0\r\n\rX\r\n",
    b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n", b"x" * 70_000,
]  # fmt: skip
_METHODS = [
    b"GET",
    b"POST",
    b"PUT",
    b"DELETE",
    b"HEAD",
    b"OPTIONS",
    b"CONNECT",
    b"get",
    b"GE T",
    b"",
    b"PRI",
    b"\x16\x03",
]
_TARGETS = [
    b"/", b"/a?b=c", b"/%00", b"/%zz", b"/\xff", b"*", b"http://x/", b"//x", b"", b"/" + b"a" * 9000, b"/ /",
    b"/..//..", b"/stream", b"/tools/x", b"/instance/x/y",
]  # fmt: skip
_VERSIONS = [
    b"HTTP/1.1",
    b"HTTP/1.1",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"HTTP/1.10",
    b"http/1.1",
    b"",
]
_STATUSES = [
    b"200 OK", b"204 No Content", b"304 Not Modified", b"100 Continue", b"101 Switching Protocols", b"103 Early Hints",
    b"500 x", b"599 ", b"999 x", b"099 x", b"20 x", b"2000 x", b"200", b"-20 x", b"200 " + b"r" * 9000, b"102 x",
]  # fmt: skip


def _corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


@st.composite
def _message(draw: st.DrawFn, first: st.SearchStrategy[bytes]) -> bytes:
    lines = [draw(first), *draw(st.lists(st.sampled_from(_HEADERS), max_size=6)), b""]
    head = b"".join(line + draw(st.sampled_from(_ENDS)) for line in lines)
    return head + draw(st.sampled_from(_BODIES))


@st.composite
def _damaged(draw: st.DrawFn, source: st.SearchStrategy[bytes]) -> bytes:
    data = bytearray(draw(source))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0:
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case 1:
                del data[at : at + draw(st.integers(1, 40))]
            case 2 if at < len(data):
                data[at] = draw(st.integers(0, 255))
            case _:
                data[at:at] = data[at : at + draw(st.integers(1, 200))]
    return bytes(data)


@st.composite
def _cut(draw: st.DrawFn, source: st.SearchStrategy[bytes]) -> list[bytes]:
    """The same bytes in several pieces."""
    data = draw(source)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=5)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


_request_line = st.builds(
    lambda *parts: b" ".join(parts), st.sampled_from(_METHODS), st.sampled_from(_TARGETS), st.sampled_from(_VERSIONS)
)
_status_line = st.builds(lambda *parts: b" ".join(parts), st.sampled_from(_VERSIONS), st.sampled_from(_STATUSES))


def requests() -> st.SearchStrategy[list[bytes]]:
    """What a client may send on one connection, in pieces."""
    one = st.one_of(_message(_request_line), st.sampled_from(_corpus("http")), st.binary(max_size=200))
    return _cut(_damaged(st.lists(one, min_size=1, max_size=4).map(b"".join)))


def answers() -> st.SearchStrategy[list[bytes]]:
    """What an instance may answer to one request, in pieces."""
    one = st.one_of(_message(_status_line), st.sampled_from(_corpus("answers")), st.binary(max_size=200))
    return _cut(_damaged(st.lists(one, min_size=1, max_size=3).map(b"".join)))
