/** The terms of a run: what it asks of a client, as far as its settings decide it. */

import { areEqual, sha256, Writer, type Bytes } from "./bytes.ts";
import { SettingsError } from "./errors.ts";
import { SEED_POLICY, SPLIT } from "./instructions.ts";

const METHODS = ["finetune", "ditto", "mixture", "readout", "local", "global", "cluster"] as const;
const MOMENTS = /^(end|every [1-9]\d{0,6} rounds?|on-data|always)$/;
const MAX_SETTINGS_BYTES = 2 ** 16;
const MAX_SEED = 2n ** 63n;

type Method = (typeof METHODS)[number];

/** The demands of a run on a client; `RunTerms` in Python says what the fields are. */
export interface RunTerms {
  readonly method: Method;
  readonly seed: bigint;
  readonly rounds: number;
  readonly privateRounds: number;
  readonly when: string;
  readonly retrains: boolean;
  readonly privateLearningRate: number | null;
  readonly pull: number;
  readonly steps: number;
  readonly queries: number;
  readonly batch: number;
  readonly epsilon: number;
  readonly differences: "central" | "forward";
  readonly learningRate: number | null;
  readonly clip: number;
  readonly seedPolicy: number;
  readonly poolSize: number;
  readonly deadline: number;
  readonly clusters: number;
  readonly clusteringRounds: number;
  readonly validationEvery: number;
  readonly hasTest: boolean;
  readonly returnsToBest: boolean;
}

/** Settings of private rounds that a signed scenario may lack. */
const PRIVATE_DEFAULTS = {
  "personal.when": "end",
  "personal.retrain": false,
  "personal.learning-rate": "auto",
  "personal.pull": 0.0625,
};

/**
 * Reads the settings that are part of a run id, sorted JSON.
 *
 * @throws SettingsError if one is missing or out of range, or asks for what a browser cannot do.
 */
export function readTerms(settings: Bytes): RunTerms {
  const text = new TextDecoder().decode(settings);
  const read = new Reading(text, settings.length);
  if (read.text("privacy.mode", "none") !== "none")
    throw new SettingsError("privacy.mode: a browser adds no noise to its reports yet");
  const method = METHODS.find((name) => name === read.text("method"));
  if (!method) throw new SettingsError(`method ${read.text("method")}: a browser cannot do it`);
  const [rounds, personal] = [read.whole("rounds", 1), read.whole("personal.rounds")];
  const trainsAlone = method === "finetune" || method === "ditto" || method === "mixture";
  const federated = method === "local" ? 0 : trainsAlone ? rounds : rounds + personal;
  const when = read.text("personal.when");
  if (!MOMENTS.test(when)) throw new SettingsError(`personal.when: ${when} is unknown here`);
  const differences = read.text("differences");
  if (differences !== "central" && differences !== "forward")
    throw new SettingsError(`differences: ${differences} is unknown here`);
  const policies: Readonly<Record<string, number>> = SEED_POLICY;
  const seedPolicy = policies[read.text("seed-policy")];
  if (seedPolicy === undefined) throw new SettingsError("seed-policy is unknown here");
  const hasClusters = method === "cluster";
  return {
    method,
    seed: read.seed(),
    rounds: federated,
    privateRounds: rounds + personal - federated,
    when,
    retrains: read.flag("personal.retrain"),
    privateLearningRate: read.rate("personal.learning-rate"),
    pull: read.number("personal.pull"),
    steps: read.whole("steps", 1, 2 ** 16 - 1),
    queries: read.whole("queries", 1, 2 ** 16 - 1),
    batch: read.whole("batch", 1),
    epsilon: read.number("epsilon"),
    differences,
    learningRate: read.rate("learning-rate"),
    clip: read.number("clip"),
    seedPolicy,
    poolSize: read.whole("pool-size", 1),
    deadline: read.number("cohort.timeout"),
    clusters: hasClusters ? read.whole("cohort.clusters", 2, 1024) : 0,
    clusteringRounds: hasClusters ? read.whole("cohort.clustering-rounds", 1, federated) : 0,
    validationEvery: read.whole("evaluate.every"),
    hasTest: read.flag("evaluate.test"),
    returnsToBest: read.value("evaluate.best") === "loss" || read.flag("evaluate.best"),
  };
}

class Reading {
  readonly #text: string;
  readonly #settings: Readonly<Record<string, unknown>>;

  constructor(text: string, length: number) {
    if (length > MAX_SETTINGS_BYTES)
      throw new SettingsError(`the run's settings have over ${MAX_SETTINGS_BYTES} bytes`);
    let settings: unknown;
    try {
      settings = JSON.parse(text);
    } catch {
      settings = null;
    }
    if (settings === null || typeof settings !== "object")
      throw new SettingsError("the run's settings are not a JSON object");
    this.#text = text;
    this.#settings = { ...PRIVATE_DEFAULTS, ...settings };
  }

  value(key: string): unknown {
    return this.#settings[key];
  }

  text(key: string, missing?: string): string {
    const value = this.#settings[key] ?? missing;
    if (typeof value !== "string") throw new SettingsError(`${key} is no text`);
    return value;
  }

  flag(key: string): boolean {
    const value = this.#settings[key];
    if (typeof value !== "boolean") throw new SettingsError(`${key} is neither true nor false`);
    return value;
  }

  whole(key: string, least = 0, most = 2 ** 32 - 1): number {
    const value = this.#settings[key];
    if (!Number.isInteger(value) || !((value as number) >= least && (value as number) <= most))
      throw new SettingsError(`${key} is no whole number from ${least} to ${most}`);
    return value as number;
  }

  number(key: string): number {
    const value = this.#settings[key];
    if (typeof value !== "number" || !(value >= 0 && Number.isFinite(value)))
      throw new SettingsError(`${key} is no number from 0 on`);
    return value;
  }

  rate(key: string): number | null {
    return this.#settings[key] === "auto" ? null : this.number(key);
  }

  /** The seed has up to 63 bits, of which `JSON.parse` keeps 53. */
  seed(): bigint {
    const digits = /[{,] ?"seed": ?(\d{1,19})[,}]/.exec(this.#text)?.[1];
    const seed = digits === undefined ? MAX_SEED : BigInt(digits);
    if (seed >= MAX_SEED) throw new SettingsError("seed is no whole number below 2^63");
    return seed;
  }
}

/** Returns the 8 bytes that name the run of some settings. */
export async function runIdOf(settings: Bytes, layoutHash: Bytes, modelId: Bytes): Promise<Bytes> {
  return (await sha256(settings, layoutHash, modelId)).slice(0, 8);
}

/** Returns whether an id is that of a run, or of a cluster in it, on this client. */
export async function isFederation(id: Bytes, runId: Bytes, terms: RunTerms): Promise<boolean> {
  if (!terms.clusters) return areEqual(id, runId);
  for (let cluster = 0; cluster < terms.clusters; cluster++) {
    const named = await sha256(runId, new Writer().u32(cluster).end());
    if (areEqual(id, named.slice(0, 8))) return true;
  }
  return false;
}

/** Returns the rounds of the global model's ledger, or of each cluster's. */
export function roundsOfFederation(terms: RunTerms): number {
  return terms.rounds - terms.clusteringRounds;
}

/** Returns whether the global model stays as it is after a round, whatever follows. */
export function isLast(terms: RunTerms, round: number): boolean {
  const last = roundsOfFederation(terms);
  return round === last + (last && terms.returnsToBest ? 1 : 0);
}

/** Returns whether every client has a private part after the last round. */
export function makesPersonalModels(terms: RunTerms): boolean {
  return terms.privateRounds > 0 || terms.method === "readout";
}

/** Returns whether clients evaluate the state after a round, 0 being the beginning, on a split. */
export function isEvaluated(
  terms: RunTerms,
  round: number,
  split: number,
  personal: boolean,
): boolean {
  const last = roundsOfFederation(terms);
  const isEnd = round === last || (terms.returnsToBest && last > 0 && last === round - 1);
  if (split === SPLIT.train || (split === SPLIT.test && !terms.hasTest)) return false;
  if (personal) return isEnd && makesPersonalModels(terms);
  const isDue = terms.validationEvery > 0 && round % terms.validationEvery === 0;
  return round === 0 || isEnd || (split === SPLIT.validation && isDue && round <= last);
}
