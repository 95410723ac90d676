// A client with the Node driver that does what it is told: see ../README.md for the commands.
"use strict";

const readline = require("readline");
const cassandra = require("cassandra-driver");
const fs = require("fs");

const [host, port, keyspace] = process.argv.slice(2);
const file = (name) => process.env[name] && fs.readFileSync(process.env[name]);
// Over TLS if there is a CA, to an address that the certificate has.
const sslOptions = process.env.CQL_TLS_CA && {
  ca: [file("CQL_TLS_CA")],
  cert: file("CQL_TLS_CERT"),
  key: file("CQL_TLS_KEY"),
  rejectUnauthorized: true,
};
const client = new cassandra.Client({
  ...(sslOptions && { sslOptions }),
  contactPoints: [host],
  protocolOptions: { port: Number(port) },
  localDataCenter: "datacenter1",
  keyspace,
  queryOptions: { consistency: cassandra.types.consistencies.localQuorum },
  policies: { reconnection: new cassandra.policies.reconnection.ConstantReconnectionPolicy(100) },
  socketOptions: { readTimeout: 15000 },
});

let unprepared = 0;
client.on("log", (level, source, message) => {
  if (/not prepared on/.test(message)) unprepared++;
});

const prepared = (text, values, options) => client.execute(text, values, { prepare: true, ...options });
const INSERT = "INSERT INTO rows (k, c, v) VALUES (?, ?, ?)";

const commands = {
  hosts: () => client.hosts.values().map((known) => known.address),
  version: () => client.controlConnection.protocolVersion,
  unprepared: () => unprepared,
  ddl: async (text) => {
    await client.execute(text);
    return true;
  },
  write: async (k, c, v) => {
    await prepared(INSERT, [k, c, v]);
    return true;
  },
  read: async (k, c) => {
    const result = await prepared("SELECT * FROM rows WHERE k = ? AND c = ?", [k, c]);
    const row = result.first();
    return [result.columns.map((column) => column.name), row && row.values()];
  },
  batch: async (k, n) => {
    const queries = [...Array(n).keys()].map((c) => ({ query: INSERT, params: [k, c, `b${c}`] }));
    queries.push(`INSERT INTO rows (k, c, v) VALUES (${k}, ${n}, 'text')`);
    await client.batch(queries, { prepare: true });
    return true;
  },
  page: async (k, size) => {
    let rows = 0;
    let pages = 0;
    let pageState;
    do {
      const result = await prepared("SELECT c FROM rows WHERE k = ?", [k], { fetchSize: size, pageState });
      pages++;
      for (const row of result.rows) if (row.c !== rows++) throw new Error(`row ${row.c} in place ${rows}`);
      pageState = result.pageState;
    } while (pageState);
    return [rows, pages];
  },
  cas: async (k, c, v) => (await prepared(`${INSERT} IF NOT EXISTS`, [k, c, v])).wasApplied(),
  columns: async (table) => {
    const known = await client.metadata.getTable(keyspace, table);
    return known ? known.columns.map((column) => column.name).sort() : [];
  },
  copy: async (table, from, to) => {
    const select = `SELECT * FROM ${table} WHERE k = ?`;
    const result = await prepared(select, [from]);
    const names = result.columns.map((column) => column.name);
    const marks = names.map(() => "?").join(", ");
    const values = result.first().values();
    values[names.indexOf("k")] = to;
    await prepared(`INSERT INTO ${table} (${names.join(", ")}) VALUES (${marks})`, values);
    return names.length;
  },
};

async function main() {
  await client.connect();
  console.log(JSON.stringify({ ok: "connected" }));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [name, ...values] = JSON.parse(line);
    try {
      console.log(JSON.stringify({ ok: await commands[name](...values) }));
    } catch (error) {
      console.log(JSON.stringify({ error: String(error) }));
    }
  }
  await client.shutdown();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
