"""A TCP proxy that breaks connections on purpose: cut, refuse, silence, delay, drop a reply.

It listens on a loopback port and passes bytes to a target, in a thread with an event loop of its
own, so that a test's event loop may block. All methods may be called from any thread.
"""

import asyncio
import threading


class Proxy:
    """A context manager; `port` is where it listens.

    `delay` (seconds) holds each chunk of the target's answers back. `silent` holds all bytes of
    both directions until it is unset. `drop_replies(n, after=m)` lets m chunks of the target's
    answers pass and the next n vanish, each with its connection: the request was carried out,
    its answer is lost.
    """

    def __init__(self, target_port, port=0):
        self.target_port, self.port = target_port, port
        self.delay = 0.0
        self.silent = False
        self.refuse = False
        self._drop = self._pass_first = 0
        self._writers = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_):
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _close(self):
        self._server.close()
        self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cut(self):
        """Reset every connection; new ones are accepted unless `refuse` is set."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self):
        for writer in self._writers:
            writer.transport.abort()

    def drop_replies(self, count=1, after=0):
        """Lose `count` chunks of answers, each with its connection, once `after` have passed."""
        self._pass_first, self._drop = after, count

    @property
    def dropped(self):
        """Whether every reply that `drop_replies` asked for was lost."""
        return self._drop == 0

    async def _serve(self, reader, writer):
        try:
            if self.refuse:
                raise ConnectionError
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        try:
            await asyncio.gather(
                self._pass(reader, up_writer, answers=False),
                self._pass(up_reader, writer, answers=True),
            )
        except OSError:
            pass  # the other side is gone: so is this one
        finally:
            for end in (writer, up_writer):
                end.transport.abort()
                self._writers.discard(end)

    async def _pass(self, reader, writer, *, answers):
        while data := await reader.read(1 << 16):
            if answers and self._drop:
                if not self._pass_first:
                    self._drop -= 1
                    raise ConnectionError
                self._pass_first -= 1
            if answers and self.delay:
                await asyncio.sleep(self.delay)
            while self.silent:  # noqa: ASYNC110 - a plain flag, which any thread may set
                await asyncio.sleep(0.02)
            writer.write(data)
            await writer.drain()
        raise ConnectionError
