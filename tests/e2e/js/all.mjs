// What users of the JavaScript clients do; prints one line per step, exits 1 at the first failure.
import assert from "node:assert/strict";
import { connect } from "@nats-io/transport-node";
import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { Objm } from "@nats-io/obj";

const nc = await connect({ servers: process.argv[2], timeout: 5000 });
const js = jetstream(nc);
const jsm = await jetstreamManager(nc);
const step = (name) => console.log(`ok ${name}`);

await jsm.streams.add({ name: "S", subjects: ["s.>"] });
for (let n = 0; n < 50; n++) {
  const ack = await js.publish(`s.${n % 3}`, `${n}`, { msgID: `${n}` });
  assert.equal(ack.seq, n + 1);
}
assert.equal((await js.publish("s.0", "x", { msgID: "7" })).duplicate, true);
step("publish");

await jsm.consumers.add("S", { durable_name: "C", ack_policy: AckPolicy.Explicit });
const consumer = await js.consumers.get("S", "C");
let got = [];
for await (const m of await consumer.fetch({ max_messages: 20, expires: 2000 })) {
  got.push(m.seq);
  await m.ackAck();
}
assert.deepEqual(got, Array.from({ length: 20 }, (_, n) => n + 1));
step("fetch");

const messages = await consumer.consume({ max_messages: 10 });
for await (const m of messages) {
  got.push(m.seq);
  m.ack();
  if (got.length === 50) break;
}
assert.equal(got.at(-1), 50);
step("consume");

const ordered = await js.consumers.get("S");
got = [];
for await (const m of await ordered.consume()) {
  got.push(m.seq);
  if (got.length === 50) break;
}
assert.deepEqual(got, Array.from({ length: 50 }, (_, n) => n + 1));
step("ordered");

const next = await (await js.consumers.get("S", { filter_subjects: ["s.1"] })).next({ expires: 2000 });
assert.equal(next.subject, "s.1");
step("next filtered");

await jsm.streams.update("S", { subjects: ["s.>"], allow_direct: true });
assert.equal((await jsm.direct.getMessage("S", { last_by_subj: "s.2" })).seq, 48);
step("direct get");

const kv = await new Kvm(js).create("B", { history: 3 });
await kv.put("k", "1");
const revision = await kv.put("k", "2");
await assert.rejects(kv.update("k", "3", revision - 1));
assert.equal((await kv.get("k")).string(), "2");
await kv.delete("k");
assert.equal((await kv.get("k")).operation, "DEL");
step("kv");

const store = await new Objm(js).create("O");
const body = new Uint8Array(600000).map((_, n) => n % 251);
await store.putBlob({ name: "blob" }, body);
assert.deepEqual(await store.getBlob("blob"), body);
step("object store");

const info = await jsm.getAccountInfo();
assert.equal(info.streams, 3);
assert.equal((await nc.context()).data.account, "$G");
for await (const s of jsm.streams.list()) assert.ok(s.config.name);
assert.equal(await jsm.streams.delete("S"), true);
step("manage");
await nc.close();
