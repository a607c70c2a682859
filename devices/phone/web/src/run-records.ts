/** The records that a phone stores for each run: its session, and its answers. */

import { toHex, type Bytes } from "./bytes.ts";
import { StorageError } from "./errors.ts";
import type { Session } from "./ledger.ts";
import type { Store } from "./store.ts";

/** Number of times that evaluations are answered again after a server has restored a backup. */
export const MOST_RESTORES = 1;

/**
 * Number of latest runs without a private model whose sessions are stored. The limit applies
 * separately to runs with answers and to runs without. The state of an older run is rebuilt from
 * the server's ledger. All sessions have the size of the program's layout.
 */
export const SESSIONS_KEPT = 8;

/** Maximum number of runs with a private model; beyond it, no other run can start. */
export const MOST_PERSONAL_RUNS = 32;

/** A session with the latest instruction's token and the report on it; empty before the first. */
export interface StoredSession {
  readonly session: Session;
  readonly token: Bytes;
  readonly report: Bytes;
}

/** The answers given in a run, so that a repeated question gets the stored answer. */
export interface Answered {
  readonly round: number;
  readonly token: Bytes;
  readonly compared: Bytes;
  readonly evaluations: Readonly<Record<string, { readonly token: Bytes; readonly frame: Bytes }>>;
  /** Number of answers to each evaluation; earlier versions of this page did not store it. */
  readonly times?: Readonly<Record<string, number>>;
  /** Number of times that the server has restored a backup, up to the relevant limit. */
  readonly restores?: number;
}

/** Returns the store keys of a run's entries; `time` is when its session was written, in ms. */
export function keysOf(
  runId: Bytes,
): Readonly<Record<"session" | "answered" | "settings" | "time", string>> {
  return keysNamed(toHex(runId));
}

function keysNamed(name: string): ReturnType<typeof keysOf> {
  const run = `run/${name}`;
  return {
    session: `${run}/session`,
    answered: `${run}/answered`,
    settings: `${run}/settings`,
    time: `${run}/time`,
  };
}

/**
 * Deletes entries of old runs before a new run is entered.
 *
 * Entries of private models and records of answers are kept (client/protocol/session_store.py).
 *
 * @throws StorageError if there are too many private models for another run.
 */
export async function makeRoom(store: Store): Promise<void> {
  const runs = new Map<string, Map<string, unknown>>();
  for (const [key, value] of await store.list("run/")) {
    const [, name = "", part = ""] = key.split("/");
    runs.set(name, (runs.get(name) ?? new Map<string, unknown>()).set(part, value));
  }
  const others = [...runs].filter(([, parts]) => !parts.has("personal"));
  if (runs.size - others.length >= MOST_PERSONAL_RUNS) throw new StorageError("runs");
  const timeOf = ([, parts]: (typeof others)[number]): number => Number(parts.get("time") ?? 0);
  others.sort((one, other) => timeOf(other) - timeOf(one));
  const answered = others.filter(([, parts]) => parts.has("answered"));
  const sessions = answered.filter(([, parts]) => parts.has("session"));
  for (const [name] of sessions.slice(SESSIONS_KEPT)) await store.erase(keysNamed(name).session);
  const none = others.filter(([, parts]) => !parts.has("answered"));
  for (const [name] of none.slice(SESSIONS_KEPT - 1)) await store.erase(`run/${name}/`);
}

/** Returns the session of a run; undefined before the first one. */
export async function readSession(store: Store, runId: Bytes): Promise<StoredSession | undefined> {
  return (await store.read(keysOf(runId).session)) as StoredSession | undefined;
}

/** Returns the record of answers in a run. */
export async function readAnswered(store: Store, runId: Bytes): Promise<Answered> {
  const answered = await store.read(keysOf(runId).answered);
  const none = { round: 0, token: new Uint8Array(), compared: new Uint8Array(), evaluations: {} };
  return (answered as Answered | undefined) ?? none;
}

/** Returns the name of an evaluation: its split and kind and, for the global model, its round. */
export function evaluationOf(
  { round, split }: { readonly round: number; readonly split: number },
  isPersonal: boolean,
): string {
  return `${split} ${isPersonal ? "personal" : round}`;
}

/** Returns the record of answers after the server has restored a backup. */
export function afterRestore(answered: Answered): Answered {
  return { ...answered, restores: Math.min((answered.restores ?? 0) + 1, MOST_RESTORES) };
}
