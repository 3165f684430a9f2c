"""Server-sent events: the data of each, from the bytes of a response.

Lines end in LF or CRLF only. (httpx's own lines also end at U+2028 and others, which stand unescaped in the JSON of
some servers.) Comments, which keep a connection open, and other fields are left out. Not covered: what the data says.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing


async def data_of(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str]:
    """The data of each event. An event whose end is missing is given as far as it came."""
    lines: list[str] = []
    async with aclosing(_lines_of(chunks)) as found:
        async for line in found:
            field, _, value = line.partition(":")
            if field == "data":
                lines.append(value.removeprefix(" "))
            elif not line and lines:
                yield "\n".join(lines)
                lines = []
    if lines:
        yield "\n".join(lines)


async def _lines_of(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str]:
    rest = b""
    async for chunk in chunks:
        *ended, rest = (rest + chunk).split(b"\n")
        for line in ended:
            yield _text_of(line)
    if rest:
        yield _text_of(rest)


def _text_of(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")
