"""One end of a pair of connected sockets: frames of bytes, each behind its length. Not covered: what is in them."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

_LENGTH_BYTES = 4


class Connection:
    """Any thread may send; one reads. Ends when the other end is closed, or its process has ended. most_s: when the
    other end has read nothing for so many whole seconds, it ends, too.
    """

    def __init__(self, end: socket.socket, most_s: int | None = None) -> None:
        self._end, self._sending = end, threading.Lock()
        if most_s is not None:  # of sending alone
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", most_s, 0))

    def send(self, frame: bytes) -> None:
        """Send a frame; waits while the other end does not read. Raises OSError if there is no other end any more."""
        with self._sending:
            try:
                self._end.sendall(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)
            except OSError:
                self.close()  # half a frame may be on the way
                raise

    def frames(self) -> Iterator[bytes]:
        """The frames that arrive, to the end. Half a frame at the end is left out. That the other end was closed before
        it read everything is an end, too.
        """
        with self._end.makefile("rb") as source, suppress(ConnectionError):
            while len(length := source.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
                frame = source.read(size := int.from_bytes(length, "big"))
                if len(frame) < size:
                    return
                yield frame

    def close(self) -> None:
        """Send and read nothing more."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def end_sending(self) -> None:
        """Send nothing more; what arrives is still read."""
        with suppress(OSError):  # the other end has gone
            self._end.shutdown(socket.SHUT_WR)
