// A user with a file of credentials: by TCP, and as a page in a browser would; then one who is revoked.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { connect } from "@nats-io/transport-node";
import { credsAuthenticator, wsconnect } from "@nats-io/nats-core";
import { jetstream, jetstreamManager } from "@nats-io/jetstream";

const [tcp, ws, file, systemFile, subject, update] = process.argv.slice(2);
const step = (name) => console.log(`ok ${name}`);
const authenticator = (name) => credsAuthenticator(readFileSync(name));
const options = { authenticator: authenticator(file), timeout: 10000, reconnect: false };

const nc = await connect({ ...options, servers: tcp });
const jsm = await jetstreamManager(nc);
await jsm.streams.add({ name: "S", subjects: ["s"] });
assert.equal((await jetstream(nc).publish("s", "1")).seq, 1);
const info = await nc.request("$SYS.REQ.USER.INFO", "", { timeout: 10000 });
assert.equal(info.json().data.user_name, "u");
step("tcp");

const all = [nc];
if (ws) {
  const browser = await wsconnect({ ...options, servers: ws });
  browser.subscribe("echo", { callback: (_, m) => m.respond(m.data) });
  await browser.flush();
  assert.equal((await nc.request("echo", "x", { timeout: 10000 })).string(), "x");
  step("websocket");
  all.push(browser);
}

const operating = await connect({ servers: tcp, authenticator: authenticator(systemFile) });
const answer = await operating.request(subject, readFileSync(update), { timeout: 10000 });
assert.equal(answer.json().data.message, "jwt updated");
for (const each of all) {
  await each.closed();
}
await assert.rejects(connect({ ...options, servers: tcp }), /authorization/i);
step("revoked");
await operating.close();
