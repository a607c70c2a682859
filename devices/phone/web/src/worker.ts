/** The worker: it receives the client's calls as messages, so that the page stays responsive. */

import { Client } from "./client.ts";
import { PlainError, problemOf, StorageError } from "./errors.ts";
import { openStore } from "./store.ts";

/** A call from the page; `name` is a method of `Client`. */
export interface Call {
  readonly id: number;
  readonly name: (typeof METHODS)[number];
  readonly given: readonly unknown[];
}

/**
 * The worker's messages: the answer to a call, readiness for calls, a changed status, another tab
 * being the phone while it is open, or the reason why it never accepts calls.
 */
export type Said =
  | { readonly id: number; readonly result: unknown }
  | { readonly id: number; readonly error: string }
  | { readonly event: "ready" | "changed" | "elsewhere" }
  | { readonly failed: string };

const METHODS = [
  "join",
  "addExamples",
  "examples",
  "removeExample",
  "predict",
  "pause",
  "holdBack",
  "limitEpsilon",
  "leave",
  "status",
] as const;
const STORE = "samara";

const say = (said: Said): void => self.postMessage(said);

async function answer(client: Client, { id, name, given }: Call): Promise<Said> {
  try {
    if (!METHODS.includes(name)) throw new Error(`the client has no ${name}`);
    const method = client[name] as (...given: readonly unknown[]) => Promise<unknown>;
    return { id, result: await method.apply(client, given as unknown[]) };
  } catch (error) {
    return { id, error: problemOf(error) };
  }
}

async function serve(): Promise<never> {
  const store = await openStore(STORE, (problem) => client.storageChanged(problem));
  const client = new Client(store, () => say({ event: "changed" }));
  self.addEventListener("online", () => void client.hurry());
  self.onmessage = async ({ data }: MessageEvent<Call>) => say(await answer(client, data));
  await client.start();
  say({ event: "ready" });
  return new Promise(() => {}); // this tab holds the lock until it is closed
}

/** Starts the phone; only one tab at a time may be the phone, and other tabs wait until that tab is closed. */
async function begin(): Promise<void> {
  if (!isSecureContext) throw new PlainError("insecure");
  const { locks } = navigator;
  const request = locks.request(STORE, { ifAvailable: true }, async (lock) => {
    if (lock) return serve();
    say({ event: "elsewhere" });
    return void locks.request(STORE, serve).catch(refused).catch(fail);
  });
  await request.catch(refused);
}

/** Throws an error for browsers that refuse locks, for example where a site may store nothing. */
function refused(error: unknown): never {
  throw error instanceof DOMException ? new StorageError("refused") : error;
}

function fail(error: unknown): void {
  console.warn("the page does not start:", error);
  say({ failed: problemOf(error) });
}

begin().catch(fail);
