/**
 * The private rounds of a client in a run: the states that they start from, and when they run.
 *
 * The client records a state of the federation as soon as private rounds from this state are due.
 * Private rounds run between messages (client/personal/personalizer.py). Every round is stored
 * atomically, so a closed tab continues with the next round.
 */

import { areEqual, toHex, type Bytes } from "./bytes.ts";
import { columnOf } from "./columns.ts";
import { ReplayError, TrainingError } from "./errors.ts";
import type { Layout } from "./layout.ts";
import { append, begin, type Session } from "./ledger.ts";
import { added } from "./local-steps.ts";
import {
  nextRecord,
  subtraction,
  type Learner,
  type PrivateProgress,
} from "./private-rounds.ts";
import type { State } from "./replay.ts";
import { PERSONAL_TRACK } from "./round-delta.ts";
import { interceptRound, isLast, makesPersonalModels, type RunTerms } from "./run-terms.ts";
import { accuracy } from "./softmax.ts";
import type { Store } from "./store.ts";

/** A state of the federation from which private rounds start. */
interface Start {
  readonly round: number;
  readonly state: State;
  readonly digest: Bytes;
}

/** Unfinished private rounds; `before` is the accuracy on validation examples. */
interface Begun {
  readonly start: Start;
  readonly progress: PrivateProgress;
  readonly data: string;
  readonly before: number | null;
}

/** Finished private rounds. */
interface Finished {
  readonly round: number;
  readonly digest: Bytes;
  readonly data: string;
  readonly before: number | null;
  readonly after: number | null;
}

interface Personal {
  readonly ledger: Session;
  readonly next: Start | null;
  readonly begun: Begun | null;
  readonly finished: Finished | null;
  /** Whether the common intercept was subtracted, or existed before any private round. */
  readonly isWithoutCommon?: boolean;
}

/**
 * The context of private rounds: the run, the hash of the training examples (empty if there are
 * none), and the current common intercept in the federation's state (null if there is none).
 */
export interface PersonalRun {
  readonly runId: Bytes;
  readonly terms: RunTerms;
  readonly dataHash: string;
  readonly common: State | null;
}

/** The private rounds of one client in a run. */
export class Personalizer {
  readonly #store: Store;
  readonly #learner: Learner;
  readonly #run: PersonalRun;
  readonly #prefix: string;

  constructor(store: Store, learner: Learner, run: PersonalRun) {
    this.#store = store;
    this.#learner = learner;
    this.#run = run;
    this.#prefix = keyOf(run.runId);
  }

  /** Stores a state of the federation if private rounds from it are due. */
  async note(start: Start): Promise<void> {
    const personal = await this.#readWithoutCommon();
    if (makesPersonalModels(this.#run.terms) && this.#isDue(personal, start))
      await this.#write({ ...personal, next: start });
  }

  /**
   * Takes the private rounds that are due, and calls `shouldStop` between rounds.
   *
   * @throws TrainingError, ReplayError if the first round from a state fails; the state is then
   *   skipped.
   */
  async take(shouldStop: () => boolean | Promise<boolean> = () => false): Promise<void> {
    for (;;) {
      let personal = await this.#read();
      if (!this.#run.dataHash || !(personal.next || personal.begun)) return;
      if (!personal.begun) personal = await this.#readWithoutCommon();
      if (!personal.begun && personal.next) personal = await this.#begin(personal, personal.next);
      while (personal.begun) {
        if (await shouldStop()) return;
        personal = await this.#takeOne(personal, personal.begun);
      }
    }
  }

  /** Returns the private state after the private rounds from a state, taking them if missing. */
  async privateState(start: Start): Promise<State> {
    const personal = await this.#readWithoutCommon();
    const latest = latestOf(personal);
    const isOther = latest === null || !areEqual(latest.digest, start.digest);
    if (latest === null || (isOther && this.#run.terms.when !== "end"))
      await this.#write({ ...personal, next: start });
    await this.take();
    return (await this.#read()).ledger.state;
  }

  /**
   * Returns the private rounds, after subtracting the common intercept if that is due.
   *
   * A fit begun from a state without it is dropped; it starts again from the latest state.
   * Unfinished private rounds are finished before the subtraction.
   */
  async #readWithoutCommon(): Promise<Personal> {
    const personal = await this.#read();
    const { common, terms } = this.#run;
    if (!common || personal.isWithoutCommon) return personal;
    const { begun, finished } = personal;
    const isOlder = (one: { readonly round: number } | null): boolean =>
      one !== null && one.round < interceptRound(terms);
    const hasOlder = isOlder(begun ? begun.start : finished);
    if (hasOlder && begun?.progress.deltas.length && terms.method !== "readout") return personal;
    const next = isOlder(personal.next) ? null : personal.next;
    const kept = hasOlder ? null : begun;
    const changed = { ...personal, next, begun: kept, isWithoutCommon: true };
    if (!hasOlder || !personal.ledger.round) return this.#write(changed);
    const { layout } = this.#learner;
    const delta = subtraction(personal.ledger.round + 1, common, layout);
    const { session, record } = await append(personal.ledger, delta, layout);
    return this.#write({ ...changed, ledger: session }, this.#recordOf(session, record));
  }

  #recordOf({ round }: Session, record: Bytes): ReadonlyMap<string, Bytes> {
    return new Map([[`${this.#prefix}/record/${String(round).padStart(10, "0")}`, record]]);
  }

  #isDue(personal: Personal, { round, digest }: Start): boolean {
    const { terms, dataHash } = this.#run;
    const latest = latestOf(personal);
    const isNew = latest === null || !areEqual(latest.digest, digest);
    if (isNew && isLast(terms, round)) return latest === null || terms.when !== "end";
    const every = terms.when.startsWith("every") ? Number(terms.when.split(" ")[1]) : 0;
    const interval = terms.when === "always" ? 1 : every;
    const since = latest?.round ?? 0;
    if (interval && isNew && Math.floor(round / interval) > Math.floor(since / interval))
      return true;
    const followsData = terms.when === "on-data" || terms.when === "always";
    if (!followsData || !round || latest === null) return false;
    return latest.data !== "" && latest.data !== dataHash;
  }

  async #begin(personal: Personal, start: Start): Promise<Personal> {
    const { ledger } = personal;
    const first = ledger.round + 1;
    const before = await this.#accuracy(start.state, ledger.state);
    const progress = { first, deltas: [], observations: [], state: ledger.state };
    const begun = { start, progress, data: this.#run.dataHash, before };
    return this.#write({ ...personal, next: null, begun });
  }

  async #takeOne(personal: Personal, begun: Begun): Promise<Personal> {
    const { start, progress } = begun;
    let next;
    try {
      const { terms, common } = this.#run;
      next = await nextRecord(this.#learner, terms, start.state, progress, common);
    } catch (error) {
      if (error instanceof TrainingError || error instanceof ReplayError)
        await this.#write({ ...personal, begun: null });
      throw error;
    }
    if (!next) {
      const { round, digest } = start;
      const after = await this.#accuracy(start.state, personal.ledger.state);
      const finished = { round, digest, data: begun.data, before: begun.before, after };
      return this.#write({ ...personal, begun: null, finished });
    }
    const { delta, observation } = next;
    const { session, record } = await append(personal.ledger, delta, this.#learner.layout);
    const observations = observation
      ? [...progress.observations, observation]
      : progress.observations;
    const deltas = [...progress.deltas, delta];
    const after = { ...progress, deltas, observations, state: session.state };
    const changed = { ...personal, ledger: session, begun: { ...begun, progress: after } };
    return this.#write(changed, this.#recordOf(session, record));
  }

  /**
   * Returns the accuracy of a personal model on the validation examples; null if there are none.
   */
  async #accuracy(w: State, p: State): Promise<number | null> {
    const { validation, training } = this.#learner;
    if (!validation.labels.length) return null;
    const { counts } = await columnOf(this.#learner, "", added(w, p), validation);
    return accuracy(counts, training.readout.labels);
  }

  #read(): Promise<Personal> {
    return readPersonal(this.#store, this.#run.runId, this.#learner.layout);
  }

  async #write(personal: Personal, more?: ReadonlyMap<string, unknown>): Promise<Personal> {
    await this.#store.write(new Map([...(more ?? []), [this.#prefix, personal]]));
    return personal;
  }
}

/** Returns the current private state of a run. */
export async function readPrivateState(
  store: Store,
  runId: Bytes,
  layout: Layout,
): Promise<State> {
  return (await readPersonal(store, runId, layout)).ledger.state;
}

async function readPersonal(store: Store, runId: Bytes, layout: Layout): Promise<Personal> {
  const kept = (await store.read(keyOf(runId))) as Personal | undefined;
  if (kept) return kept;
  const ledger = await begin({ track: PERSONAL_TRACK, runId, layoutHash: layout.hash }, layout);
  return { ledger, next: null, begun: null, finished: null };
}

function keyOf(runId: Bytes): string {
  return `run/${toHex(runId)}/personal`;
}

/** Returns the state from which the latest private rounds were or will be taken. */
function latestOf({ next, begun, finished }: Personal): {
  readonly round: number;
  readonly digest: Bytes;
  readonly data: string;
} | null {
  if (next) return { round: next.round, digest: next.digest, data: "" };
  if (begun) return { round: begun.start.round, digest: begun.start.digest, data: begun.data };
  return finished;
}
