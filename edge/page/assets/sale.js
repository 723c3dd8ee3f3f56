// The sale page's client. It decides nothing: it asks the gate, waits as long as it is told to, and
// says the answer in words. Every claim of this page carries one idempotency key, kept over reloads,
// so that a repeat after a lost answer finds the first attempt's claim.

const sale = location.pathname.split("/")[2] ?? "";
const api = `/v1/sales/${encodeURIComponent(sale)}`;
const el = (id) => document.getElementById(id);
const ui = {
  title: el("title"), description: el("description"), price: el("price"), when: el("when"),
  countdown: el("countdown"), clock: el("clock"), buy: el("buy"), button: el("button"),
  answer: el("answer"), pay: el("pay"), payButton: el("pay-button"), letGo: el("let-go"), trace: el("trace"),
};
const REQUEST_TIMEOUT_MS = 10_000;
const TIME_SAMPLES = 5;
const KEY = `flashgate-key-${sale}`;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// --- The server's clock: offset = server − phone; the best sample is the one with the least round trip.

const clock = { offset: 0, error: Infinity };
const now = () => Date.now() + clock.offset;

function learnTime(nowMs, sentAt, receivedAt, statedError = 0) {
  const error = (receivedAt - sentAt) / 2 + statedError;
  if (error > clock.error) return;
  clock.offset = nowMs - (sentAt + receivedAt) / 2;
  clock.error = error;
}

async function measureTime() {
  for (let i = 0; i < TIME_SAMPLES; i++) {
    const sentAt = Date.now();
    const { ok, body } = await call("GET", "/v1/time");
    if (ok) learnTime(body.now_ms, sentAt, Date.now(), body.error_ms ?? 0);
    await sleep(100 + Math.random() * 100);
  }
  if (Number.isFinite(clock.error)) {
    ui.clock.textContent = `By the shop’s clock, which this page knows to ±${Math.ceil(clock.error)} ms.`;
  }
}

// --- Asking

async function call(method, path, body, headers = {}) {
  try {
    const answer = await fetch(path, {
      method,
      headers: { accept: "application/json", ...(body ? { "content-type": "application/json" } : {}), ...headers },
      body: body ? JSON.stringify(body) : undefined,
      credentials: "same-origin",
      cache: "no-store",
      signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS),
    });
    const trace = answer.headers.get("flashgate-trace-id");
    if (trace && !answer.ok) ui.trace.textContent = `Reference ${trace}`;
    return { ok: answer.ok, status: answer.status, body: await answer.json().catch(() => ({})) };
  } catch {
    return { ok: false, status: 0, body: {} };
  }
}

const kind = (body) => String(body.type ?? "").replace("/problems/", "");
const waitOf = (body, fallback = 1500) => body.retry_after_ms ?? fallback + Math.random() * fallback;

function say(text, good = false) {
  if (ui.answer.textContent !== text) ui.answer.textContent = text;
  ui.answer.classList.toggle("good", good);
}

function button(label, enabled) {
  ui.button.textContent = label;
  ui.button.disabled = !enabled;
}

function money(price) {
  const digits = new Intl.NumberFormat("en", { style: "currency", currency: price.currency })
    .resolvedOptions().maximumFractionDigits;
  return new Intl.NumberFormat(undefined, { style: "currency", currency: price.currency })
    .format(price.amount_minor / 10 ** digits);
}

const clockTime = (ms) => new Date(ms).toLocaleTimeString();

// --- The key of this page's claim

function idempotencyKey() {
  let key = localStorage.getItem(KEY);
  if (!key) {
    key = crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
    localStorage.setItem(KEY, key);
  }
  return key;
}

const forgetKey = () => localStorage.removeItem(KEY);

// --- The sale and its countdown

let view = null;
let busy = false;
let entered = false;
let claim = null;

async function loadSale() {
  const sentAt = Date.now();
  const { ok, status, body } = await call("GET", api);
  if (status === 404) {
    ui.title.textContent = "There is no such sale";
    say("Please check the address.");
    return null;
  }
  if (!ok) return undefined;
  learnTime(body.now_ms, sentAt, Date.now(), 50);
  view = body;
  document.title = body.title;
  ui.title.textContent = body.title;
  ui.description.textContent = body.description;
  ui.price.textContent = money(body.price);
  return body;
}

function tick() {
  if (!view) return;
  const opensIn = view.opens_at_ms - now();
  const left = opensIn > 0 ? opensIn : view.closes_at_ms - now();
  ui.when.textContent = opensIn > 0 ? "Opens in" : left > 0 ? "Ends in" : "Ended";
  const seconds = Math.max(0, Math.ceil(left / 1000));
  const part = (n) => String(n).padStart(2, "0");
  ui.countdown.textContent = `${part(Math.floor(seconds / 3600))}:${part(Math.floor(seconds / 60) % 60)}:${part(seconds % 60)}`;
  if (busy || claim) return;
  if (opensIn > 0) button("Not open yet", false);
  else if (left <= 0 || view.phase === "closed") button("The sale has ended", false);
  else if (view.phase === "sold_out") button("Sold out – try anyway", true);
  else if (view.phase === "paused") button("Paused, please wait", false);
  else button("Buy now", true);
}

async function enter() {
  while (!entered) {
    const { ok, status, body } = await call("POST", `${api}/enter`, {});
    if (ok) { entered = true; return true; }
    if ([401, 403, 404, 410].includes(status)) {
      say(body.title ?? "You cannot enter this sale from here.");
      return false;
    }
    await sleep(waitOf(body));
  }
  return true;
}

// --- Buying

async function buy() {
  busy = true;
  button("Asking…", false);
  try {
    if (!(await enter())) return;
    for (;;) {
      const { ok, status, body } = await call("POST", `${api}/claim`, { quantity: 1 }, { "idempotency-key": idempotencyKey() });
      if (ok) return void follow(body.status_url, body.poll_after_ms);
      const what = kind(body);
      if (what === "token-expired" || what === "token-missing" || what === "token-invalid") {
        entered = false;
        if (!(await enter())) return;
        continue;
      }
      if (status === 0 || status >= 500 || status === 429 || status === 425) {
        say(body.title ? `${body.title}.` : "No answer from the shop. Looking for your claim…");
        if (await findMine()) return;
        await sleep(waitOf(body));
        continue;
      }
      // An honest no. An earlier attempt may still have won: ask before believing it.
      if (await findMine()) return;
      say(`${body.title ?? "This did not work"}.${body.left ? ` ${body.left} left.` : ""}`);
      view = { ...view, phase: what === "sold-out" ? "sold_out" : what === "closed" ? "closed" : view?.phase };
      return;
    }
  } finally {
    busy = false;
    tick();
  }
}

async function findMine() {
  const { ok, body } = await call("GET", `${api}/my-claim`);
  if (!ok || !body.claim || body.claim.status === "LOST") return false;
  entered = true;
  show(body.claim);
  if (body.claim.poll_after_ms !== undefined) follow(body.claim.status_url, body.claim.poll_after_ms);
  return true;
}

// Server-sent events where they work; polling, as told, where they do not.
function follow(statusUrl, pollAfterMs) {
  claim ??= { status: "PENDING", status_url: statusUrl };
  if (claim.status === "PENDING") show({ ...claim });
  const [path, query] = statusUrl.split("?");
  let polling = false;
  const poll = async (waitMs) => {
    if (polling) return;
    polling = true;
    for (let wait = waitMs; ;) {
      await sleep(wait);
      const { ok, body } = await call("GET", statusUrl);
      if (ok) {
        show(body);
        if (body.poll_after_ms === undefined) return;
      }
      wait = ok ? body.poll_after_ms : waitOf(body);
    }
  };
  if (!("EventSource" in window)) return void poll(pollAfterMs);
  const events = new EventSource(`${path}/events?${query ?? ""}`);
  events.addEventListener("status", (event) => {
    const status = JSON.parse(event.data);
    show(status);
    if (status.poll_after_ms === undefined) events.close();
  });
  events.onerror = () => { events.close(); void poll(pollAfterMs); };
}

function show(status) {
  claim = status;
  ui.pay.hidden = status.status !== "RESERVED";
  button("Your claim is in", false);
  switch (status.status) {
    case "PENDING":
      say("You are through. Your unit is being written down…");
      break;
    case "RESERVED":
      say(status.paying ? "Your payment is on its way…" : `You got it! Please pay by ${clockTime(status.pay_by_ms)}.`, true);
      ui.payButton.disabled = Boolean(status.paying);
      ui.payButton.textContent = status.amount ? `Pay ${money(status.amount)}` : "Pay now";
      break;
    case "PAID":
      say("Paid. It is yours. Thank you!", true);
      break;
    case "EXPIRED":
      say(status.refunded ? "The time to pay had run out; your money goes back to you." : "The time to pay ran out, and the unit went back on sale.");
      claim = null;
      forgetKey();
      tick();
      break;
    case "LOST":
      say("Sorry: this claim could not be kept, and nothing was charged. You may try again.");
      claim = null;
      forgetKey();
      tick();
      break;
  }
}

async function pay(event) {
  event.preventDefault();
  if (!claim) return;
  ui.payButton.disabled = true;
  const { ok, body } = await call("POST", "/v1/orders", { claim_id: claim.claim_id, sale, payment: "ok" });
  if (ok) {
    say("Your payment is on its way…", true);
    follow(body.status_url, body.poll_after_ms);
  } else {
    say(`${body.title ?? "The payment could not be started"}. You may try again until ${clockTime(claim.pay_by_ms)}.`);
    ui.payButton.disabled = false;
  }
}

async function letGo() {
  if (!claim) return;
  const [path, query] = claim.status_url.split("?");
  const { ok, body } = await call("POST", `${path}/release?${query ?? ""}`);
  if (ok) show(body);
  else say(`${body.title ?? "This did not work"}.`);
}

// --- Start

async function start() {
  ui.buy.addEventListener("submit", (event) => { event.preventDefault(); if (!busy && !claim) void buy(); });
  ui.pay.addEventListener("submit", pay);
  ui.letGo.addEventListener("click", letGo);
  let loaded = await loadSale();
  while (loaded === undefined) {
    say("The shop does not answer yet. Trying again…");
    await sleep(waitOf({}));
    loaded = await loadSale();
  }
  if (loaded === null) return;
  say("");
  setInterval(tick, 200);
  tick();
  void measureTime();
  if (!(await findMine())) void enter();
  for (;;) {
    await sleep(view?.poll_after_ms ?? 5000);
    if (!claim && !busy && document.visibilityState === "visible") await loadSale();
  }
}

void start();
