/** The worker: the client's calls as messages, so that the page stays smooth while it computes. */

import { Client } from "./client.ts";
import { PlainError, problemOf, StorageError } from "./errors.ts";
import { openStore } from "./store.ts";

/** A call of the page; `name` is a method of `Client`. */
export interface Call {
  readonly id: number;
  readonly name: (typeof METHODS)[number];
  readonly given: readonly unknown[];
}

/**
 * What the worker says: the answer to a call, that it takes calls now, that the status has changed,
 * that another tab is the phone for as long as it is open, or why it never takes calls.
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
  return new Promise(() => {}); // the lock is this tab's until it is closed
}

/** One tab at a time is the phone: another one waits until the first is closed. */
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

/** Says what a browser means that gives no locks, as where a site may keep nothing. */
function refused(error: unknown): never {
  throw error instanceof DOMException ? new StorageError("refused") : error;
}

function fail(error: unknown): void {
  console.warn("the page does not start:", error);
  say({ failed: problemOf(error) });
}

begin().catch(fail);
