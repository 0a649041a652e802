// node-postgres with its cursor and COPY companions. Prints `ok NAME` or `FAIL NAME why`; libpq's variables say where.
'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const { Readable, Writable } = require('node:stream');
const { pipeline: flow } = require('node:stream/promises');
const { Client, Pool } = require('pg');
const Cursor = require('pg-cursor');
const copy = require('pg-copy-streams');

async function connected(work, options = {}) {
  const client = new Client(options);
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

async function rejects(promise, code) {
  try {
    await promise;
  } catch (error) {
    assert.strictEqual(error.code, code, error.message);
    return;
  }
  assert.fail(`no error ${code}`);
}

const tests = {
  // Named statements: two clients use one name for two texts.
  prepared: () => connected((first) => connected(async (second) => {
    for (let n = 0; n < 20; n++) {
      const one = await first.query({ name: 'same', text: 'select $1::int + 1 as v', values: [n] });
      const two = await second.query({ name: 'same', text: 'select $1::int * 2 as v', values: [n] });
      assert.deepStrictEqual([one.rows[0].v, two.rows[0].v], [n + 1, n * 2]);
    }
  })),

  // Queued queries: sent one after another without waiting in the application.
  batch: () => connected(async (client) => {
    const results = await Promise.all(Array.from({ length: 100 }, (_, n) => client.query('select $1::int as v', [n])));
    assert.deepStrictEqual(results.map((result) => result.rows[0].v), Array.from({ length: 100 }, (_, n) => n));
  }),

  pool: async () => {
    const pool = new Pool({ max: 20 });
    const values = await Promise.all(Array.from({ length: 200 }, (_, n) => pool.query('select $1::int as v', [n])));
    assert.deepStrictEqual(values.map((result) => result.rows[0].v), Array.from({ length: 200 }, (_, n) => n));
    await pool.end();
  },

  copy: () => connected(async (client) => {
    await client.query('create temp table copied (i int, t text)');
    const lines = Array.from({ length: 5000 }, (_, n) => `${n}\trow ${n}\n`);
    await flow(Readable.from(lines), client.query(copy.from('copy copied from stdin')));
    let bytes = 0;
    await flow(client.query(copy.to('copy copied to stdout')), new Writable({ write(chunk, _, done) { bytes += chunk.length; done(); } }));
    assert.strictEqual(bytes, lines.join('').length);
    await rejects(flow(Readable.from(['not a number\tx\n']), client.query(copy.from('copy copied from stdin'))), '22P02');
    assert.strictEqual((await client.query('select 1 as v')).rows[0].v, 1);
  }),

  cursor: () => connected(async (client) => {
    const cursor = client.query(new Cursor('select generate_series(1, 1000) as v'));
    let sum = 0;
    for (let rows; (rows = await cursor.read(100)).length > 0;) for (const row of rows) sum += row.v;
    assert.strictEqual(sum, 500500);
    await cursor.close();
  }),

  // A CancelRequest on a connection of its own, with the process id and key of BackendKeyData.
  cancel: () => connected(async (client) => {
    const query = client.query('select pg_sleep(20)');
    const started = Date.now();
    setTimeout(() => {
      const request = Buffer.alloc(16);
      [16, 80877102, client.processID, client.secretKey].forEach((value, n) => request.writeInt32BE(value, n * 4));
      const socket = require('node:net').connect(Number(process.env.PGPORT), process.env.PGHOST, () => socket.end(request));
      socket.on('error', () => {});
    }, 500);
    await rejects(query, '57014');
    assert.ok(Date.now() - started < 10000);
    assert.strictEqual((await client.query('select 1 as v')).rows[0].v, 1);
  }),

  tls_require: () => connected(async (client) => {
    assert.strictEqual((await client.query('select 1 as v')).rows[0].v, 1);
  }, { ssl: { rejectUnauthorized: false } }),

  tls_verify_full: async () => {
    const verify = (file) => connected((client) => client.query('select 1'), { host: 'localhost', ssl: { ca: fs.readFileSync(file), servername: 'localhost' } });
    await verify(process.env.TEST_CA);
    await assert.rejects(verify(process.env.TEST_OTHER_CA), 'a certificate of another authority was taken');
  },

  transactions: () => connected(async (client) => {
    await client.query('create temp table tx (i int)');
    await client.query('begin isolation level serializable');
    await client.query('insert into tx values (1)');
    await client.query('savepoint a');
    await rejects(client.query('select 1/0'), '22012');
    await client.query('rollback to a');
    await client.query('commit');
    assert.strictEqual((await client.query('select count(*)::int as v from tx')).rows[0].v, 1);
  }),

  error: () => connected(async (client) => {
    for (let n = 0; n < 3; n++) {
      await rejects(client.query('select 1 / $1::int', [0]), '22012');
      assert.strictEqual((await client.query('select 1 as v')).rows[0].v, 1);
    }
  }),

  notifications: () => connected((listener) => connected(async (sender) => {
    const heard = new Promise((resolve) => listener.once('notification', resolve));
    await listener.query('listen node_test');
    await sender.query("notify node_test, 'hello'");
    assert.strictEqual((await heard).payload, 'hello');
  })),
};

(async () => {
  let failed = false;
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test();
      console.log(`ok ${name}`);
    } catch (error) {
      failed = true;
      console.log(`FAIL ${name} ${String(error.stack || error).replaceAll('\n', ' ')}`);
    }
  }
  process.exit(failed ? 1 : 0);
})();
