/** What a phone keeps of each run: its session, and what it has answered. */

import { toHex, type Bytes } from "./bytes.ts";
import type { Session } from "./ledger.ts";
import type { Store } from "./store.ts";

/** Times that evaluations are answered again after a server has gone on from a backup. */
export const MOST_RESTORES = 1;

/** A session with the latest instruction's token and the report on it; empty before the first. */
export interface StoredSession {
  readonly session: Session;
  readonly token: Bytes;
  readonly report: Bytes;
}

/** What was answered in a run, so that a question that is asked again gets the stored answer. */
export interface Answered {
  readonly round: number;
  readonly token: Bytes;
  readonly compared: Bytes;
  readonly evaluations: Readonly<Record<string, { readonly token: Bytes; readonly frame: Bytes }>>;
  /** How often each evaluation was answered; those of earlier versions of this page lack it. */
  readonly times?: Readonly<Record<string, number>>;
  /** How often the server has gone back to a backup, as far as it counts. */
  readonly restores?: number;
}

/** Returns the keys of a run's entries in a store. */
export function keysOf(
  runId: Bytes,
): Readonly<Record<"session" | "answered" | "settings", string>> {
  const run = `run/${toHex(runId)}`;
  return { session: `${run}/session`, answered: `${run}/answered`, settings: `${run}/settings` };
}

/** Returns the session of a run; undefined before its first. */
export async function readSession(store: Store, runId: Bytes): Promise<StoredSession | undefined> {
  return (await store.read(keysOf(runId).session)) as StoredSession | undefined;
}

/** Returns what was answered in a run. */
export async function readAnswered(store: Store, runId: Bytes): Promise<Answered> {
  const answered = await store.read(keysOf(runId).answered);
  const none = { round: 0, token: new Uint8Array(), compared: new Uint8Array(), evaluations: {} };
  return (answered as Answered | undefined) ?? none;
}

/** Returns the name of an evaluation: its split and kind, and of the global model its round. */
export function evaluationOf(
  { round, split }: { readonly round: number; readonly split: number },
  isPersonal: boolean,
): string {
  return `${split} ${isPersonal ? "personal" : round}`;
}

/** Returns what was answered after the server has gone back to a backup. */
export function afterRestore(answered: Answered): Answered {
  return { ...answered, restores: Math.min((answered.restores ?? 0) + 1, MOST_RESTORES) };
}
