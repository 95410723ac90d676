"""What stands between Afterglow and a database that both speak TLS, and knows who shows which
certificate.
"""

import asyncio
import contextlib
import threading


class TlsRelay:
    """Ends the TLS of its clients, with `context`, and speaks TLS of its own to the server, with
    `towards`. `names` are the common names that clients have shown, one for each connection.
    """

    def __init__(self, address, port, target, context, towards):
        self.address, self.port, self.target = address, port, target
        self.context, self.towards = context, towards
        self.names, self.ended, self.pairs = [], 0, set()
        self.loop, self.begun = asyncio.new_event_loop(), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.thread.start()
        assert self.begun.wait(10), "the relay does not listen"
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(20)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def cut(self):
        """Every connection."""
        asyncio.run_coroutine_threadsafe(self._cut(), self.loop).result(10)

    async def _cut(self):
        for pair in list(self.pairs):
            for one in pair:
                one.transport.abort()

    async def _end(self):
        self.server.close()
        await self._cut()
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks, timeout=10)

    def _run(self):
        begin = asyncio.start_server(self._client, self.address, self.port, ssl=self.context)
        self.server = self.loop.run_until_complete(begin)
        self.begun.set()
        self.loop.run_forever()

    async def _client(self, reader, near):
        subject = dict(pair for (pair,) in near.get_extra_info("peercert")["subject"])
        self.names.append(subject["commonName"])
        with contextlib.suppress(OSError):
            other, far = await asyncio.open_connection(
                *self.target, ssl=self.towards, server_hostname=self.target[0]
            )
            pair = near, far
            self.pairs.add(pair)
            await asyncio.gather(self._copy(reader, far), self._copy(other, near))
            self.pairs.discard(pair)
        near.transport.abort()
        self.ended += 1

    @staticmethod
    async def _copy(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()
