// A page of a browser: `run` is called with the server's URL and a login, and says what it did.
import { wsconnect } from "@nats-io/nats-core";
import { jetstream, jetstreamManager } from "@nats-io/jetstream";

async function use(servers, login) {
  const done = [];
  const nc = await wsconnect({ servers, ...login, timeout: 10000, reconnect: false });
  done.push(`connected as ${(await nc.request("$SYS.REQ.USER.INFO", "", { timeout: 10000 })).json().data.user}`);

  nc.subscribe("echo", { callback: (_, m) => m.respond(m.data) });
  const large = "x".repeat(300_000);
  const answer = (await nc.request("echo", large, { timeout: 10000 })).string();
  done.push(answer === large ? "request" : `request gave ${answer.length} characters`);

  const jsm = await jetstreamManager(nc);
  await jsm.streams.add({ name: "S", subjects: ["s.>"] });
  const js = jetstream(nc);
  await Promise.all(Array.from({ length: 200 }, (_, n) => js.publish(`s.${n}`, `${n}`)));
  const consumer = await js.consumers.get("S");
  let got = 0;
  for await (const m of await consumer.fetch({ max_messages: 200, expires: 10000 })) {
    if (m.string() !== `${got}`) throw new Error(`message ${got} is ${m.string()}`);
    got += 1;
    if (got === 200) break;
  }
  done.push(`fetched ${got}`);
  await nc.close();
  return done;
}

globalThis.run = (servers, login) => use(servers, login).catch((err) => [`failed: ${err.message}`]);
