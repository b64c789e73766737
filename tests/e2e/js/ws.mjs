// What a page in a browser does: the client with the WebSocket that the platform has.
import assert from "node:assert/strict";
import { wsconnect } from "@nats-io/nats-core";
import { jetstream, jetstreamManager } from "@nats-io/jetstream";

const nc = await wsconnect({ servers: process.argv[2], timeout: 5000 });
const step = (name) => console.log(`ok ${name}`);

nc.subscribe("echo", { callback: (_, m) => m.respond(m.data) });
const large = "x".repeat(500_000);
assert.equal((await nc.request("echo", large, { timeout: 5000 })).string(), large);
step("request");

const jsm = await jetstreamManager(nc);
await jsm.streams.add({ name: "S", subjects: ["s.>"] });
const js = jetstream(nc);
await Promise.all(Array.from({ length: 200 }, (_, n) => js.publish(`s.${n}`, `${n}`)));
const consumer = await js.consumers.get("S");
let got = 0;
for await (const m of await consumer.fetch({ max_messages: 200, expires: 5000 })) {
  got += 1;
  if (got === 200) break;
}
assert.equal(got, 200);
step("stream");

await nc.close();
