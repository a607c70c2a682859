/** The worker: the client's calls as messages, so that the page stays smooth while it computes. */

import { Client } from "./client.ts";
import { InvitationError } from "./errors.ts";
import { openStore } from "./store.ts";

/** A call of the page; `name` is a method of `Client`. */
export interface Call {
  readonly id: number;
  readonly name: (typeof METHODS)[number];
  readonly given: readonly unknown[];
}

/**
 * What the worker says: the answer to a call, that it takes calls now, that the status has changed,
 * or that another tab is the phone for as long as it is open.
 */
export type Said =
  | { readonly id: number; readonly result: unknown }
  | { readonly id: number; readonly error: string; readonly reason: string }
  | { readonly event: "ready" | "changed" | "elsewhere" };

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
    const reason = error instanceof InvitationError ? error.reason : "";
    return { id, error: error instanceof Error ? error.message : String(error), reason };
  }
}

async function serve(): Promise<never> {
  const client = new Client(await openStore(STORE), () => say({ event: "changed" }));
  self.onmessage = async ({ data }: MessageEvent<Call>) => say(await answer(client, data));
  await client.start();
  say({ event: "ready" });
  return new Promise(() => {}); // the lock is this tab's until it is closed
}

// One tab at a time is the phone: another one waits until the first is closed.
void navigator.locks.request(STORE, { ifAvailable: true }, async (lock) => {
  if (lock) return serve();
  say({ event: "elsewhere" });
  return void navigator.locks.request(STORE, serve);
});
