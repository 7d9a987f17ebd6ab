"""uvicorn with an end to its patience.

It has no time-out for a request's headers or for a client that does not read,
and no limit to the headers' size or to requests that are sent ahead.
"""

import functools

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_AT_MOST = 1 << 16  # bytes of a request's first line and headers
# Bytes of a request: the largest body that is read and dropped, and what
# chunks and trailers put around it.
REQUEST_AT_MOST = 128 << 20
AHEAD_AT_MOST = 100  # requests sent before those in front are answered


def server_config(app, host, port, slow_client):
    """The `uvicorn.Config` of the application.

    Args:
        app: the ASGI application.
        host: name or address to listen on.
        port: 0 for a free one.
        slow_client: seconds in which a client sends its headers, and in which
            it reads at least something of its answer.
    """
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=functools.partial(_Connection, slow_client),
        ws="none",
        log_level="warning",
        access_log=False,
    )


class _Connection(HttpToolsProtocol):
    """One connection, looked at every so many seconds.

    Once its headers are read, `web.py` gives a body its own time.
    """

    def __init__(self, seconds, **arguments):
        super().__init__(**arguments)
        self.seconds = seconds
        self._received = 0  # bytes since the last request was done
        self._seen = None

    def connection_made(self, transport):
        super().connection_made(transport)
        self._seen = self._state()
        self._look = self.loop.call_later(self.seconds, self._look_again)

    def connection_lost(self, exc):
        self._look.cancel()
        super().connection_lost(exc)

    def on_response_complete(self):
        self._received = 0
        super().on_response_complete()

    def data_received(self, data):
        request = self.cycle
        super().data_received(data)
        if self.cycle is not request:
            self._received = 0
        self._received += len(data)
        if self.transport.is_closing():
            return
        if self._awaits_head() and self._received > HEAD_AT_MOST:
            self.send_400_response(
                f"The headers are larger than {HEAD_AT_MOST} bytes."
            )
        elif (
            self._received > REQUEST_AT_MOST
            or len(self.pipeline) > AHEAD_AT_MOST
        ):
            self.transport.abort()

    def _awaits_head(self):
        return self.cycle is None or self.cycle.response_complete

    def _state(self):
        """What it does, for which request, and what the client has to read."""
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            return "sends", self.cycle, unsent
        return "waits" if self._awaits_head() else "works", self.cycle, 0

    def _look_again(self):
        *before, unread = self._seen
        self._seen = self._state()
        *now, unsent = self._seen
        if now == before and now[0] != "works" and unsent >= unread:
            self.transport.abort()
        else:
            self._look = self.loop.call_later(self.seconds, self._look_again)
