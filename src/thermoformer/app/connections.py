"""HTTP connections of the explorer: each must deliver its requests and take its answers in time."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .guard import LARGEST_BODY

# Seconds for the head of a request, and again for its body.
REQUEST_TIME = 10.0
# Bytes of a body that get one second more: the largest upload has a minute.
SLOWEST_RATE = 2**18
# Seconds for the rest of a body whose request has been answered already, with a refusal as a rule.
ANSWERED_TIME = 2.0
# Seconds in which a reader must take something of an answer.
READER_TIME = 30.0
# Connections without a complete request; of more, the oldest is closed.
MOST_WAITING = 200


class Connection(H11Protocol):
    """A connection of uvicorn with the time limits that uvicorn does not have."""

    waiting: ClassVar[dict[Connection, None]] = {}
    limit: asyncio.TimerHandle | None = None
    phase: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the time of the first request."""
        super().connection_made(transport)
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._end_in(None)
        self.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads, and starts or ends a time limit."""
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Waits for the next request, and not long for what is left of this one."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._end_in(ANSWERED_TIME)
        else:
            self._queue()

    def pause_writing(self) -> None:
        """Starts the time of a slow reader."""
        super().pause_writing()
        self._end_in(READER_TIME)

    def resume_writing(self) -> None:
        """Ends the time of a slow reader."""
        super().resume_writing()
        self._end_in(None)

    def _follow(self) -> None:
        """Sets the time limit of the part of a request that is being received."""
        if self.transport.get_protocol() is not self:  # a websocket now, which stays open
            self._end_in(None)
            self.waiting.pop(self, None)
            return
        phase = self.conn.their_state
        if phase is h11.IDLE:
            self._queue()
        else:
            self.waiting.pop(self, None)
        if phase is not self.phase:
            self.phase = phase
            length = dict(self.headers or ()).get(b"content-length", b"0") if phase is h11.SEND_BODY else b"0"
            waits = phase in (h11.IDLE, h11.SEND_BODY)
            self._end_in(REQUEST_TIME + min(int(length), LARGEST_BODY) / SLOWEST_RATE if waits else None)

    def _queue(self) -> None:
        if not self.transport.is_closing():
            self.waiting.setdefault(self)
        if len(self.waiting) > MOST_WAITING:
            oldest = next(iter(self.waiting))
            del self.waiting[oldest]
            oldest.transport.abort()

    def _end_in(self, seconds: float | None) -> None:
        if self.limit is not None:
            self.limit.cancel()
        self.limit = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)
