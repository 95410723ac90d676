"""A client with the C++ driver that does what it is told: see ../README.md for the commands.

The driver is ScyllaDB's, inside the acsylla package, whose Python calls it and adds nothing.
"""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import acsylla

INSERT = "INSERT INTO rows (k, c, v) VALUES (?, ?, ?)"
SELECT = "SELECT * FROM rows WHERE k = ? AND c = ?"
PAGE = "SELECT c FROM rows WHERE k = ?"
# The driver's newest; it says in its log where a server makes it go lower.
NEWEST_PROTOCOL = 4
# acsylla reads no decimal whose bytes are not UTF-8, and times without their nanoseconds.
UNREADABLE = {"decimal", "time"}
HostEvent = acsylla.HostListenerEvent


class Heard:
    """What the driver tells of itself: the nodes that it knows, and what it logs."""

    def __init__(self):
        self.nodes, self.unprepared, self.protocol = set(), 0, NEWEST_PROTOCOL

    def node(self, event, address):
        if event is HostEvent.ADD:
            self.nodes.add(address)
        elif event is HostEvent.REMOVE:
            self.nodes.discard(address)

    def log(self, message):
        self.unprepared += "Unprepared error response" in message.message
        if lower := re.search(r"Trying protocol version v?(\d)", message.message):
            self.protocol = int(lower[1])
        print(message.message, file=sys.stderr, flush=True)


class Commands:
    def __init__(self, session, keyspace, port, heard):
        self.session, self.keyspace, self.port, self.heard = session, keyspace, port, heard
        self.prepared = {}

    async def statement(self, text, *values, **how):
        if text not in self.prepared:
            self.prepared[text] = await self.session.create_prepared(text)
        return self.prepared[text].bind(list(values), **how)

    async def execute(self, text, *values, **how):
        return await self.session.execute(await self.statement(text, *values, **how))

    async def hosts(self):
        return [f"{address}:{self.port}" for address in sorted(self.heard.nodes)]

    async def version(self):
        return self.heard.protocol

    async def unprepared(self):
        return self.heard.unprepared

    async def ddl(self, text):
        await self.session.execute(acsylla.create_statement(text))
        return True

    async def write(self, k, c, v):
        await self.execute(INSERT, k, c, v)
        return True

    async def read(self, k, c):
        result = await self.execute(SELECT, k, c)
        row = result.first()
        return [result.columns_names(), row and row.as_list()]

    async def batch(self, k, n):
        batch = acsylla.create_batch_logged()
        for c in range(n):
            batch.add_statement(await self.statement(INSERT, k, c, f"b{c}"))
        text = f"INSERT INTO rows (k, c, v) VALUES ({k}, {n}, 'text')"
        batch.add_statement(acsylla.create_statement(text))
        await self.session.execute_batch(batch)
        return True

    async def page(self, k, size):
        rows = pages = 0
        state = None
        while pages == 0 or state:
            result = await self.execute(PAGE, k, page_size=size, page_state=state)
            pages += 1
            for row in result.all():
                if row.column_value("c") != rows:
                    raise ValueError(f"row {row.column_value('c')} in place {rows}")
                rows += 1
            state = result.page_state() if result.has_more_pages() else None
        return [rows, pages]

    async def cas(self, k, c, v):
        result = await self.execute(f"{INSERT} IF NOT EXISTS", k, c, v)
        return result.first().column_value("[applied]")

    async def columns(self, table):
        known = self.session.get_metadata()
        if table not in known.get_tables(self.keyspace):
            return []
        columns = known.get_table_meta(self.keyspace, table).columns
        return sorted(column.name for column in columns)

    async def copy(self, table, source, target):
        columns = self.session.get_metadata().get_table_meta(self.keyspace, table).columns
        names = [column.name for column in columns if column.type not in UNREADABLE]
        select = f"SELECT {', '.join(names)} FROM {table} WHERE k = ?"
        values = (await self.execute(select, source)).first().as_list()
        values[names.index("k")] = target
        marks = ", ".join("?" for _ in names)
        await self.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", *values)
        return len(names)


# That a certificate is of the CA, and has the address: of acsylla's own flags none asks for both.
VERIFY = SimpleNamespace(value=acsylla.SSLVerifyFlags.PEER_CERT.value | 2)


def over_tls():
    """Options of TLS, to an address that the certificate has; none without a CA."""
    names = {
        "ssl_trusted_cert": "CQL_TLS_CA",
        "ssl_cert": "CQL_TLS_CERT",
        "ssl_private_key": "CQL_TLS_KEY",
    }
    files = {option: os.environ[name] for option, name in names.items() if name in os.environ}
    if not files:
        return {}
    pems = {option: Path(file).read_text() for option, file in files.items()}
    return {"ssl_enabled": True, "ssl_verify_flags": VERIFY, **pems}


async def main(host, port, keyspace, *more):
    heard = Heard()
    cluster = acsylla.create_cluster(
        [host],
        port=int(port),
        consistency="LOCAL_QUORUM",
        protocol_version=NEWEST_PROTOCOL,
        request_timeout=15,
        constant_reconnect_delay_ms=100,
        log_level="debug",
        logging_callback=heard.log,
        host_listener_callback=heard.node,
        **over_tls(),
    )
    session = await cluster.create_session(keyspace=keyspace)
    commands = Commands(session, keyspace, port, heard)
    print(json.dumps({"ok": "connected"}), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, *values = json.loads(line)
        try:
            answer = {"ok": await getattr(commands, name)(*values)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    await session.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
