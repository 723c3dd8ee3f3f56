// The Worker's entry: hands requests to the gate's WebAssembly, and outlives its death.
//
// Rust panics abort here, and what JavaScript throws into the gate's code leaves it half way: the instance's
// memory is then of no more use, for any request that was under way in it. So all of them are answered with
// 503, the instance is replaced by a new one, which knows nothing, as after a start, and the isolate goes on
// with the next request. No decision is taken here.

import { DurableObject } from "cloudflare:workers";
import * as gate from "./gate.mjs";

// Which instance this is; the next one after each death.
let generation = 0;

// Ends a request that is under way, one function for each.
const underWay = new Set();

function died(error) {
  console.error("flashgate: the gate's instance died", error?.stack ?? error);
  generation += 1;
  // At once: what still calls the dead one must meet an error and not the new one's memory.
  gate.__wbg_reset_state();
  for (const end of [...underWay]) end();
}

// The gate's futures are polled in microtasks: what one of them throws comes here, to nobody's call.
addEventListener("error", (event) => died(event.error));
addEventListener("unhandledrejection", (event) => {
  // An answer that nobody waits for any more may be rejected: that is no death.
  if (event.reason instanceof WebAssembly.RuntimeError) died(event.reason);
});

// What the work answers, or our own answer when its instance dies first. Most of the work is done when it
// returns, without a promise: a refusal from memory.
function guarded(work) {
  try {
    const answer = work();
    return answer instanceof Response ? answer : survived(answer);
  } catch (error) {
    // The gate answers everything itself: whatever it throws is none of its answers.
    died(error);
    return interrupted();
  }
}

async function survived(answer) {
  let end;
  const dead = new Promise((resolve) => {
    end = () => resolve(undefined);
  });
  underWay.add(end);
  try {
    // The answer is made in this request's own context, whoever's death it was.
    return (await Promise.race([answer, dead])) ?? interrupted();
  } catch (error) {
    died(error);
    return interrupted();
  } finally {
    underWay.delete(end);
  }
}

// The same words as the self-hosted edge's for the same event.
function interrupted() {
  const problem = {
    type: "about:blank",
    title: "Interrupted",
    status: 503,
    detail: "Whether the request was carried out is unknown. Repeat it as it is.",
  };
  const headers = {
    "content-type": "application/problem+json",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "retry-after": "1",
  };
  return new Response(JSON.stringify(problem), { status: 503, headers });
}

export default {
  fetch(request, env) {
    return guarded(() => gate.fetch(request, env));
  },
};

// The Durable Object. It dies with the instance too: a new one is made with the next question.
export class LeaseDesk extends DurableObject {
  #desk;
  #generation;

  fetch(request) {
    return guarded(() => {
      if (this.#generation !== generation) {
        this.#desk = new gate.LeaseDesk(this.ctx, this.env);
        this.#generation = generation;
      }
      return this.#desk.fetch(request);
    });
  }
}
