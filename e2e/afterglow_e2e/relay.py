"""What stands between clients and a server, and breaks their connections."""

import contextlib
import socket
import threading
import time


class Relay:
    """Between clients and a server: it can cut every connection, make each wait, or let none
    through.
    """

    def __init__(self, address, port, target):
        self.target, self.delay, self.is_blocked = target, 0.0, False
        self.pairs, self.lock = set(), threading.Lock()
        self.listener = socket.create_server((address, port))
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
                    is_blocked = self.is_blocked
                if is_blocked:
                    self._close((near, far))
                    continue
                for ends in ((near, far), (far, near)):
                    threading.Thread(
                        target=self._copy, args=(*ends, (near, far)), daemon=True
                    ).start()

    def _copy(self, source, sink, pair):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.delay:
                    time.sleep(self.delay)
                sink.sendall(data)
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
        """Nothing goes through until `unblock`."""
        with self.lock:
            self.is_blocked = True
        self.cut()

    def unblock(self):
        self.is_blocked = False

    def close(self):
        self.listener.close()
        self.cut()
