/** The terms of a run: its demands on a client, as far as they follow from its settings. */

import { areEqual, sha256, Writer, type Bytes } from "./bytes.ts";
import { SettingsError } from "./errors.ts";
import { SEED_POLICY, SPLIT, type Differences } from "./instructions.ts";
import { readPrivacy, type PrivacyTerms } from "./privacy-terms.ts";
import { SettingValues } from "./setting-values.ts";

const METHODS = ["finetune", "ditto", "mixture", "readout", "local", "global", "cluster"] as const;

const PROFILED = "profiled-cross-entropy";

type Method = (typeof METHODS)[number];

/** The demands of a run on a client; `RunTerms` in Python documents the fields. */
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
  readonly differences: Differences;
  /** Whether the steps train the profiled cross-entropy. */
  readonly isProfiled: boolean;
  /** Whether clients report the shift of the profiled loss in the round of intercepts. */
  readonly reportsShifts: boolean;
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
  /** The terms that protect a client's reports; null without differential privacy. */
  readonly privacy: PrivacyTerms | null;
}

/**
 * Reads the settings that are part of a run id, given as sorted JSON.
 *
 * @throws SettingsError if a setting is missing or out of range, or asks for something that a
 *   browser cannot do.
 */
export function readTerms(settings: Bytes): RunTerms {
  const read = new SettingValues(settings);
  const method = METHODS.find((name) => name === read.text("method"));
  if (!method) throw new SettingsError(`method ${read.text("method")}: a browser does not support this method`);
  const objective = read.text("objective");
  if (objective !== "cross-entropy" && objective !== PROFILED)
    throw new SettingsError(`objective ${objective}: a browser does not support this objective`);
  if (read.text("personal.prior") !== "own")
    throw new SettingsError("personal.prior common: a browser does not support this choice");
  const [rounds, personal] = [read.whole("rounds"), read.whole("personal.rounds")];
  const trainsAlone = method === "finetune" || method === "ditto" || method === "mixture";
  const federated = method === "local" ? 0 : trainsAlone ? rounds : rounds + personal;
  const policies: Readonly<Record<string, number>> = SEED_POLICY;
  const seedPolicy = policies[read.text("seed-policy")];
  if (seedPolicy === undefined) throw new SettingsError("seed-policy is unknown here");
  const hasClusters = method === "cluster";
  const [steps, queries] = [read.whole("steps"), read.whole("queries")];
  const isProfiled = objective === PROFILED;
  const reportsShifts = isProfiled && method !== "readout" && read.flag("adapter.label-bias");
  const reports = federated + (method === "readout" || reportsShifts ? 1 : 0);
  return {
    method,
    seed: read.seed(),
    rounds: federated,
    privateRounds: rounds + personal - federated,
    when: read.text("personal.when"),
    retrains: read.flag("personal.retrain"),
    privateLearningRate: read.rate("personal.learning-rate"),
    pull: read.number("personal.pull"),
    steps,
    queries,
    batch: read.whole("batch"),
    epsilon: read.number("epsilon"),
    differences: read.text("differences") as Differences,
    isProfiled,
    reportsShifts,
    learningRate: read.rate("learning-rate"),
    clip: read.number("clip"),
    seedPolicy,
    poolSize: read.whole("pool-size"),
    deadline: read.number("cohort.timeout"),
    clusters: hasClusters ? read.whole("cohort.clusters") : 0,
    clusteringRounds: hasClusters ? read.whole("cohort.clustering-rounds", federated) : 0,
    validationEvery: read.whole("evaluate.every"),
    hasTest: read.flag("evaluate.test"),
    returnsToBest: read.value("evaluate.best") === "loss" || read.flag("evaluate.best"),
    privacy: readPrivacy(read, reports, steps * queries),
  };
}

/** Returns the run id of some settings, 8 bytes. */
export async function runIdOf(settings: Bytes, layoutHash: Bytes, modelId: Bytes): Promise<Bytes> {
  return (await sha256(settings, layoutHash, modelId)).slice(0, 8);
}

/** Returns the ids under which a client takes part: the run's, or those of its clusters. */
export async function federationsOf(runId: Bytes, terms: RunTerms): Promise<Bytes[]> {
  if (!terms.clusters) return [runId];
  const named = Array.from({ length: terms.clusters }, (_, cluster) =>
    sha256(runId, new Writer().u32(cluster).end()),
  );
  return (await Promise.all(named)).map((hash) => hash.slice(0, 8));
}

/** Returns whether an id is that of a run, or of a cluster in it, on this client. */
export async function isFederation(id: Bytes, runId: Bytes, terms: RunTerms): Promise<boolean> {
  return (await federationsOf(runId, terms)).some((federation) => areEqual(federation, id));
}

/** Returns the rounds of the global model's ledger, or of each cluster's. */
export function roundsOfFederation(terms: RunTerms): number {
  return terms.rounds - terms.clusteringRounds;
}

/** Returns the round after the last one, which adds the common intercept; 0 if there is none. */
export function interceptRound(terms: RunTerms): number {
  if (terms.method !== "readout" && !terms.reportsShifts) return 0;
  return roundsOfFederation(terms) + (terms.returnsToBest ? 2 : 1);
}

/** Returns whether the global model is final after a round. */
export function isLast(terms: RunTerms, round: number): boolean {
  const last = roundsOfFederation(terms);
  return round === (interceptRound(terms) || last + (last && terms.returnsToBest ? 1 : 0));
}

/** Returns whether every client has a private part after the last round. */
export function makesPersonalModels(terms: RunTerms): boolean {
  return terms.privateRounds > 0 || terms.method === "readout";
}

/** Returns whether clients evaluate the state after a round on a split; round 0 is the start. */
export function isEvaluated(
  terms: RunTerms,
  round: number,
  split: number,
  personal: boolean,
): boolean {
  const last = roundsOfFederation(terms);
  const isBest = terms.returnsToBest && last > 0 && last === round - 1;
  const isEnd = round === last || isBest || (round > 0 && round === interceptRound(terms));
  if (split === SPLIT.train || (split === SPLIT.test && !terms.hasTest)) return false;
  if (personal) return isEnd && makesPersonalModels(terms);
  const isDue = terms.validationEvery > 0 && round % terms.validationEvery === 0;
  return round === 0 || isEnd || (split === SPLIT.validation && isDue && round <= last);
}
