// Fast ingest of @nats-io/jetstream, and object stores, which use it; exits 1 at the first failure.
import assert from "node:assert/strict";
import { connect } from "@nats-io/transport-node";
import { jetstream, jetstreamManager } from "@nats-io/jetstream";
import { startFastIngest } from "@nats-io/jetstream/internal";
import { Objm } from "@nats-io/obj";

const nc = await connect({ servers: process.argv[2], timeout: 10_000 });
const jsm = await jetstreamManager(nc);
const step = (name) => console.log(`ok ${name}`);

await jsm.streams.add({ name: "F", subjects: ["f.>"], allow_batched: true });
for (const allowGaps of [false, true]) {
  const batch = await startFastIngest(nc, "f.0", "0", { allowGaps, ackInterval: 50 });
  for (let n = 1; n < 2000; n++) await batch.add(`f.${n % 3}`, `${n}`);
  const ack = await batch.last("f.last", "2000");
  assert.equal(ack.stream, "F");
  assert.equal(ack.batch, batch.batch);
  assert.equal(ack.count, 2001);
  step(`batch, gaps ${allowGaps ? "reported" : "refused"}`);
}
const ended = await startFastIngest(nc, "f.0", "x", {});
await ended.add("f.1", "y");
assert.equal((await ended.end()).count, 2);
assert.equal((await jsm.streams.info("F")).state.messages, 2 * 2001 + 2);
step("end");

await jsm.streams.add({ name: "N", subjects: ["n"] });
await assert.rejects(startFastIngest(nc, "n", "x", {}));
assert.equal((await jsm.streams.info("N")).state.messages, 0);
step("refused where a stream does not allow it");

const store = await new Objm(jetstream(nc)).create("o", { allowBatched: true });
assert.equal((await jsm.streams.info("OBJ_o")).config.allow_batched, true);
const blob = new Uint8Array(3_000_000).map((_, n) => (n * 31) % 251);
const info = await store.putBlob({ name: "big" }, blob);
assert.equal(info.size, blob.length);
assert.deepEqual(await store.getBlob("big"), blob);
step("object");

await nc.close();
