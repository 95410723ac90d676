"""What stands between clients and a server, and breaks their connections."""

import contextlib
import socket
import threading
import time


class Relay:
    """Between clients and a server: it can cut every connection, make each wait, or let nothing
    through. `listener`: where it listens, if that is not in this network.
    """

    def __init__(self, address, port, target, listener=None):
        self.target, self.delay, self.passes = target, 0.0, threading.Event()
        self.passes.set()
        self.pairs, self.lock = set(), threading.Lock()
        self.listener = listener or socket.create_server((address, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                try:
                    far = socket.create_connection(self.target, 2)
                    far.settimeout(None)
                except OSError:
                    near.close()
                    continue
                for one in (near, far):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self.lock:
                    self.pairs.add((near, far))
                for ends in ((near, far), (far, near)):
                    threading.Thread(
                        target=self._copy, args=(*ends, (near, far)), daemon=True
                    ).start()

    def _copy(self, source, sink, pair):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.delay:
                    time.sleep(self.delay)
                self.passes.wait()
                sink.sendall(data)
        # The end of a connection is not heard through a cut either.
        self.passes.wait()
        self._close(pair)

    def _close(self, pair):
        with self.lock:
            self.pairs.discard(pair)
        for one in pair:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def cut(self):
        with self.lock:
            pairs = list(self.pairs)
        for pair in pairs:
            self._close(pair)

    def block(self):
        """Nothing goes through until `unblock`, and nobody is told: connections stay. What is sent
        meanwhile comes afterwards, as TCP sends again what a network has lost.
        """
        self.passes.clear()

    def unblock(self):
        self.passes.set()

    def close(self):
        self.listener.close()
        self.passes.set()
        self.cut()
