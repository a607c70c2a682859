/**
 * The operator's signed scenario: the settings of a run. A phone with a signed scenario takes part
 * only in this run.
 *
 * The scenario came with the invitation, whose code contains its hash. Every instruction must follow
 * from the scenario (client/protocol/signed_runs.py).
 */

import { areEqual, fromHex, toUtf8, type Bytes } from "./bytes.ts";
import { ScenarioError } from "./errors.ts";
import {
  encodeTrain,
  INTERCEPT_TRACK,
  SEED_POLICY,
  type EvaluateInstruction,
  type TrainInstruction,
} from "./instructions.ts";
import { orthogonalRoot, roundRoot } from "./philox.ts";
import { GLOBAL_TRACK } from "./round-delta.ts";
import { evaluationOf, MOST_RESTORES, readAnswered, type Answered } from "./run-records.ts";
import {
  federationsOf,
  interceptRound,
  isEvaluated,
  isFederation,
  readTerms,
  roundsOfFederation,
  runIdOf,
  type RunTerms,
} from "./run-terms.ts";
import { readPublicKey } from "./signing.ts";
import { curvatureInterval } from "./step-size.ts";
import type { Store } from "./store.ts";

/** The maximum norm of a client's intercept, with differential privacy. */
const INTERCEPT_LIMIT = 2;
const LINES = 3;

/** A scenario with the operator's valid signature. */
export interface SignedRun {
  readonly settings: Bytes;
  readonly terms: RunTerms;
  readonly runId: Bytes;
}

/**
 * Reads a signed scenario.
 *
 * @throws ScenarioError if it is invalid, or was changed after the operator signed it.
 */
export async function readScenario(
  text: string,
  layoutHash: Bytes,
  modelId: Bytes,
): Promise<SignedRun> {
  const [header, settings, files, end] = text.split("\n");
  const sound = end === "" && text.split("\n").length === LINES + 1;
  if (!sound || !(await isSigned(header!, `${settings}\n${files}`)))
    throw new ScenarioError("the scenario was changed after the operator signed it");
  const identity = toUtf8(settings!);
  const runId = await runIdOf(identity, layoutHash, modelId);
  return { settings: identity, terms: readTerms(identity), runId };
}

async function isSigned(header: string, signed: string): Promise<boolean> {
  let given: Record<string, unknown>;
  try {
    given = JSON.parse(header) as Record<string, unknown>;
  } catch {
    return false;
  }
  const operator = await readPublicKey(String(given["operator"]));
  const signature = fromHex(String(given["signature"]));
  return (await operator?.isOf(signature, toUtf8(`samara scenario 1\0${signed}`))) ?? false;
}

/** Throws `ScenarioError` unless a train instruction follows from the scenario. */
export async function checkTrain(run: SignedRun, asked: TrainInstruction): Promise<void> {
  const { terms } = run;
  if (asked.track === INTERCEPT_TRACK && interceptRound(terms)) {
    await checkRun(run, { ...asked, track: GLOBAL_TRACK });
    if (!areEqual(encodeTrain(interceptInstruction(terms, asked)), encodeTrain(asked)))
      throw new ScenarioError("the intercept round is not the round that the operator signed");
    return;
  }
  await checkRun(run, asked);
  const isPooled = terms.seedPolicy === SEED_POLICY.pool;
  const hasComponents = terms.differences === "components";
  const interval = hasComponents ? 0 : curvatureInterval(terms.queries, terms.differences);
  const isEstimated = terms.learningRate === null;
  const isMeasured = isEstimated && interval > 0 && [1, interval].includes(asked.curvatureEvery);
  const signed: TrainInstruction = {
    ...asked,
    steps: terms.steps,
    queries: terms.queries,
    batch: terms.batch,
    seedPolicy: terms.seedPolicy,
    root: hasComponents
      ? orthogonalRoot(terms.seed, asked.round, terms.queries, GLOBAL_TRACK)
      : roundRoot(terms.seed, asked.round, GLOBAL_TRACK),
    epsilon: terms.epsilon,
    learningRate: isEstimated
      ? asked.learningRate
      : Math.min(asked.learningRate, terms.learningRate!),
    clip: terms.clip || (isEstimated ? asked.clip : 0),
    deadline: terms.deadline,
    poolRoot: isPooled ? roundRoot(terms.seed, 0, GLOBAL_TRACK) : 0n,
    poolSize: isPooled ? terms.poolSize : 0,
    curvatureEvery: isMeasured ? asked.curvatureEvery : isEstimated ? interval : 0,
    differences: terms.differences,
    jointClip: terms.privacy?.isAdaptive ? asked.jointClip : 0, // privacy does not depend on it
    isProfiled: terms.isProfiled,
  };
  const isSame = areEqual(encodeTrain(signed), encodeTrain(asked));
  if (!isSame || asked.round > roundsOfFederation(terms))
    throw new ScenarioError(`round ${asked.round} is not the round that the operator signed`);
}

/** Returns the instruction of the intercept round that follows from the terms. */
function interceptInstruction(terms: RunTerms, asked: TrainInstruction): TrainInstruction {
  const { privacy } = terms;
  const jointClip = privacy?.isAdaptive ? asked.jointClip : 0;
  const queries = privacy ? terms.queries : asked.queries;
  return {
    ...asked,
    round: interceptRound(terms),
    steps: privacy ? terms.steps : 1,
    queries,
    batch: terms.batch,
    seedPolicy: SEED_POLICY.shared,
    root: roundRoot(terms.seed, 0, INTERCEPT_TRACK),
    epsilon: terms.epsilon,
    learningRate: privacy
      ? (queries * INTERCEPT_LIMIT) / (jointClip || privacy.clip)
      : queries,
    clip: 0,
    deadline: terms.deadline,
    poolRoot: 0n,
    poolSize: 0,
    curvatureEvery: 0,
    differences: "central",
    jointClip,
    isProfiled: false,
  };
}

/** Throws `ScenarioError` unless an evaluation follows from the scenario. */
export async function checkEvaluate(
  run: SignedRun,
  asked: EvaluateInstruction,
  personal: boolean,
): Promise<void> {
  await checkRun(run, asked);
  if (!isEvaluated(run.terms, asked.round, asked.split, personal))
    throw new ScenarioError(`no evaluation after round ${asked.round} was signed`);
}

/**
 * Throws `ScenarioError` if a report was already sent on an instruction's round or a later one.
 *
 * A run's clusters are counted together. A repeated instruction gets the same report again.
 */
export async function checkReport(
  run: SignedRun,
  { runId, round }: TrainInstruction,
  token: Bytes,
  store: Store,
): Promise<void> {
  for (const [federation, answered] of await readBooks(run, runId, store)) {
    const isRepeated = areEqual(federation, runId) && areEqual(answered.token, token);
    if (round <= answered.round && !isRepeated)
      throw new ScenarioError(`another report about round ${round} was sent`);
  }
}

/**
 * Throws `ScenarioError` if an evaluation was already answered as often as the owner was promised:
 * once, and once more after the server restored a backup. The personal comparison is made only
 * once.
 */
export async function checkTimes(
  run: SignedRun,
  asked: EvaluateInstruction,
  isPersonal: boolean,
  store: Store,
): Promise<void> {
  const books = (await readBooks(run, asked.runId, store)).map(([, answered]) => answered);
  const question = evaluationOf(asked, isPersonal);
  const times = books.reduce((sum, book) => sum + (book.times?.[question] ?? 0), 0);
  const restores = books.reduce((sum, book) => sum + (book.restores ?? 0), 0);
  if (times > (isPersonal ? 0 : Math.min(MOST_RESTORES, restores)))
    throw new ScenarioError(`an evaluation after round ${asked.round} was sent`);
}

async function readBooks(
  { runId, terms }: SignedRun,
  asked: Bytes,
  store: Store,
): Promise<(readonly [Bytes, Answered])[]> {
  const all = await federationsOf(runId, terms);
  const counted = all.some((federation) => areEqual(federation, asked)) ? all : [asked];
  return Promise.all(counted.map(async (id) => [id, await readAnswered(store, id)] as const));
}

async function checkRun(
  { runId, terms }: SignedRun,
  asked: { readonly runId: Bytes; readonly track: number },
): Promise<void> {
  if (asked.track !== GLOBAL_TRACK || !(await isFederation(asked.runId, runId, terms)))
    throw new ScenarioError("the server asks for a run that the operator has not signed");
}
