// The workerd side: a worker in front of objects, as door/serve.go is for limpet.
import { DurableObject } from "cloudflare:workers";

export class Bench extends DurableObject {
  noop() {
    return 1;
  }

  // The reply waits for the commit by itself.
  async write(key, value) {
    await this.ctx.storage.put(key, value);
    return 1;
  }
}

// 100 characters that change each time: a put of the same value commits nothing.
let count = 0;
function value() {
  return (++count + "-" + Math.random() + "-").padEnd(100, "v");
}

export default {
  async fetch(request, env) {
    const url = new URL(request.url);
    const object = env.BENCH.getByName(url.searchParams.get("o"));
    switch (url.pathname) {
      case "/rpc":
        return new Response(String(await object.noop()));
      case "/put":
        return new Response(String(await object.write("k", value())));
    }
    return new Response("not found\n", { status: 404 });
  },
};
