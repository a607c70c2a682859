/**
 * Private rounds: the steps that a client takes alone, on top of the global model.
 *
 * A private round is a round with a cohort of one, on its own track. It has the same steps, the
 * same exact replay, and a ledger that never leaves the browser
 * (client/personal/private_rounds.py). With the method readout, one record holds a fit instead.
 * This module has no side effects.
 */

import type { Report } from "./answers.ts";
import type { Bytes } from "./bytes.ts";
import { trainForARound } from "./components.ts";
import { FrameError, ReplayError, TrainingError } from "./errors.ts";
import { encodeTrain, SEED_POLICY, type TrainInstruction } from "./instructions.ts";
import { firstOf, GROUP, type Layout } from "./layout.ts";
import {
  added,
  clipped,
  coefficientsOf,
  scoredUnder,
  without,
  type Training,
} from "./local-steps.ts";
import { orthogonalRoot, roundRoot } from "./philox.ts";
import { fittedShift } from "./profiled-loss.ts";
import { batchLosses, type Represented } from "./readout.ts";
import {
  checkFits,
  denseValues,
  digest,
  MAX_SHRINK,
  quantize,
  replay,
  roundHalfEven,
  toFloat32,
  widest,
  zeroState,
  type DenseValues,
  type Shrink,
  type State,
} from "./replay.ts";
import { PERSONAL_TRACK, replayed, reverting, type RoundDelta } from "./round-delta.ts";
import { interceptRound, type RunTerms } from "./run-terms.ts";
import { mean } from "./softmax.ts";
import { fitIntercept, fitPrivatePart, type SoftmaxFit } from "./softmax-fit.ts";
import { componentRate, StepSize, type Observation } from "./step-size.ts";
import { tokenOf } from "./wire.ts";

const ERASURE: readonly Shrink[] = Array.from({ length: MAX_SHRINK }, () => ({ bits: 1 }));
/** The maximum number of elements in the directions of a private round with components: 32 MiB. */
const MOST_OWN_NUMBERS = 2 ** 22;
const DEFAULT_SHARE = 0.5;
const KEPT_SHARES: readonly (readonly [number, readonly Shrink[]])[] = [
  [0, ERASURE],
  [0.125, ERASURE.slice(0, 3)],
  [0.25, ERASURE.slice(0, 2)],
  [0.5, ERASURE.slice(0, 1)],
  [0.75, [{ bits: 2 }]],
  [0.875, [{ bits: 3 }]],
  [1, []],
];

/** The view of a client that private rounds use. */
export interface Learner {
  readonly layout: Layout;
  readonly training: Training;
  readonly validation: Represented;
}

/**
 * The progress of private rounds from one state of the federation: the number of their first
 * record, the records so far, the observations of the rounds, and the current private state.
 */
export interface PrivateProgress {
  readonly first: number;
  readonly deltas: readonly RoundDelta[];
  readonly observations: readonly Observation[];
  readonly state: State;
}

/** The next record of private rounds, with its round's observation; null for other records. */
export interface NextRecord {
  readonly delta: RoundDelta;
  readonly observation: Observation | null;
}

/**
 * Returns the next record of private rounds from a state of the federation; null after the last.
 *
 * @param common common intercept in that state, which private parts exclude.
 * @throws TrainingError, ReplayError if the first round fails. A later round that fails is
 *   reverted, like a round after which the loss has risen.
 */
export async function nextRecord(
  learner: Learner,
  terms: RunTerms,
  w: State,
  progress: PrivateProgress,
  common: State | null = null,
): Promise<NextRecord | null> {
  const { first, deltas, state } = progress;
  if (terms.method === "readout") {
    if (deltas.length) return null;
    const fitted = await privateFit(learner, w, common);
    return record(first, differences(fitted, state, learner.layout));
  }
  const beginning = terms.retrains && first > 1 ? 1 : 0;
  if (deltas.length < beginning) return record(first, ERASURE);
  const done = deltas.length - beginning;
  if (done < terms.privateRounds)
    return nextRound(learner, terms, w, progress, first + beginning);
  if (terms.method !== "mixture" || done > terms.privateRounds) return null;
  return record(first + deltas.length, await mixtureShrinks(learner, w, state));
}

/** Returns the record that removes a common intercept from a private part. */
export function subtraction(round: number, common: State, layout: Layout): RoundDelta {
  const nothing = zeroState(layout.size);
  return record(round, differences(without(nothing, common), nothing, layout)).delta;
}

/**
 * Returns the report on the intercept round: the client's intercept or shift, by contrasts.
 *
 * @throws FrameError if the run has no such round, or the instruction has no room for the
 *   intercept.
 */
export async function interceptReport(
  { training }: Learner,
  terms: RunTerms,
  instruction: TrainInstruction,
  token: Bytes,
  w: State,
): Promise<Report> {
  const { steps, queries, learningRate } = instruction;
  const { labels, contrasts } = training.readout;
  const gradients = new Float32Array(steps * queries);
  const hasRoom = gradients.length >= labels - 1;
  const isPadded = terms.privacy === null && gradients.length > labels - 1;
  if (!interceptRound(terms) || !hasRoom || isPadded)
    throw new FrameError("there is no intercept round, or the instruction has no room for an intercept");
  const examples = await scoredUnder(training, w, training.examples);
  const intercept = terms.reportsShifts
    ? fittedShift(examples.scores, examples.labels, labels)
    : fitPrivatePart(examples, training.readout, false).intercept;
  const scale = learningRate ? queries / learningRate : 0;
  for (let contrast = 0; contrast < labels - 1; contrast++) {
    const row = contrasts.subarray(contrast * labels, (contrast + 1) * labels);
    gradients[contrast] = -scale * intercept.reduce((sum, one, at) => sum + one * row[at]!, 0);
  }
  return {
    token,
    client: training.client,
    examples: examples.labels.length,
    meanLoss: 0,
    queries,
    gradients,
    summedSteps: 0,
    curvature: null,
  };
}

function record(round: number, entries: RoundDelta["entries"]): NextRecord {
  const token = new Uint8Array(8);
  const delta = { round, track: PERSONAL_TRACK, token, contributors: [], entries };
  return { delta, observation: null };
}

async function nextRound(
  learner: Learner,
  terms: RunTerms,
  w: State,
  { deltas, observations, state }: PrivateProgress,
  firstRound: number,
): Promise<NextRecord> {
  let size = new StepSize(
    terms.privateRounds,
    privateRate(terms, learner.layout),
    terms.epsilon,
  );
  for (const one of observations) size = size.after(one);
  const round = firstRound + observations.length;
  const model = added(w, state);
  const instruction = await privateInstruction(terms, round, learner.layout, model, size);
  const token = await tokenOf(encodeTrain(instruction));
  let report: Report | null = null;
  try {
    report = await trainForARound(instruction, token, model, learner.training);
  } catch (error) {
    const hasFailed = error instanceof TrainingError || error instanceof ReplayError;
    if (!hasFailed || round === firstRound) throw error;
  }
  const observation = observe(instruction, report);
  const { backTo } = size.after(observation);
  const start = { round, track: PERSONAL_TRACK, token };
  if (report && backTo === null) {
    const { client, examples } = report;
    const contributors = [{ client, examples, steps: instruction.steps }];
    const entries = [...groupsOf(instruction, report), ...pullOf(terms)];
    return { delta: { ...start, contributors, entries }, observation };
  }
  const last = firstRound - 1 + (backTo ?? 0);
  const groups = reverting(deltas.filter((delta) => delta.round > last));
  const delta = { ...start, contributors: [], entries: groups ?? ERASURE };
  try {
    checkFits(state, replayed(delta));
    return { delta, observation };
  } catch {
    return { delta: { ...delta, entries: ERASURE }, observation };
  }
}

/** Returns the η of private rounds; null if it is to be estimated. */
function privateRate(terms: RunTerms, layout: Layout): number | null {
  if (terms.differences !== "components") return terms.privateLearningRate;
  const { privateRounds, privateLearningRate } = terms;
  return (
    privateLearningRate ?? componentRate(layout, privateRounds, directionsOf(terms, layout))
  );
}

/** Returns the directions of a step; with components, as many as fit, because nothing is sent. */
function directionsOf({ differences, queries }: RunTerms, { size }: Layout): number {
  if (differences !== "components") return queries;
  return Math.min(size, Math.max(1, Math.floor(MOST_OWN_NUMBERS / size)));
}

async function privateInstruction(
  terms: RunTerms,
  round: number,
  layout: Layout,
  model: State,
  size: StepSize,
): Promise<TrainInstruction> {
  const { steps, batch, epsilon, differences } = terms;
  const queries = directionsOf(terms, layout);
  const hasComponents = differences === "components";
  return {
    runId: new Uint8Array(8),
    round,
    track: PERSONAL_TRACK,
    steps,
    queries,
    batch,
    seedPolicy: hasComponents ? SEED_POLICY.shared : SEED_POLICY.independent,
    root: hasComponents
      ? orthogonalRoot(terms.seed, round, queries, PERSONAL_TRACK)
      : roundRoot(terms.seed, round, PERSONAL_TRACK),
    epsilon,
    learningRate: size.learningRate,
    clip: terms.clip || size.clip,
    deadline: 0,
    layoutHash: layout.hash,
    startDigest: await digest(layout.hash, model),
    poolRoot: 0n,
    poolSize: 0,
    curvatureEvery: size.curvatureEvery(terms.queries, differences),
    differences,
    jointClip: 0,
    isProfiled: terms.isProfiled && !terms.reportsShifts,
  };
}

function groupsOf(instruction: TrainInstruction, report: Report): RoundDelta["entries"] {
  const { round, root, steps, queries, differences } = instruction;
  const coefficients = coefficientsOf(instruction, clipped(instruction, report.gradients));
  const source =
    differences === "components"
      ? { root, count: queries }
      : { root, seedStream: report.client + 1, steps, queries };
  return quantize(coefficients).map((scalars) => ({ origin: round, source, scalars }));
}

/** Returns the shrinks at the end of a private round: ditto's pull, rounded to a power of 2. */
function pullOf(terms: RunTerms): Shrink[] {
  if (terms.method !== "ditto") return [];
  const bits = Math.max(1, roundHalfEven(-Math.log2(terms.pull)));
  return [{ bits: Math.min(MAX_SHRINK, bits) }];
}

function observe(instruction: TrainInstruction, report: Report | null): Observation {
  const { learningRate, queries, curvatureEvery, steps } = instruction;
  if (!report)
    return {
      loss: Infinity,
      meanSquare: 0,
      squaredNorm: 0,
      learningRate,
      curvature: null,
      directions: 0,
    };
  const squares = clipped(instruction, report.gradients).map((one) => one * one);
  const measured = curvatureEvery ? Math.ceil(steps / curvatureEvery) : 0;
  return {
    loss: report.meanLoss,
    meanSquare: mean(squares),
    squaredNorm: (mean(squares) * squares.length) / queries ** 2,
    learningRate,
    curvature: report.curvature,
    directions: queries * measured,
  };
}

/** Returns the shrinks of p that minimize the validation loss of w + p. */
async function mixtureShrinks(
  { training, validation, layout }: Learner,
  w: State,
  p: State,
): Promise<readonly Shrink[]> {
  const rows = Array.from(validation.labels.keys());
  if (!rows.length) return KEPT_SHARES.find(([share]) => share === DEFAULT_SHARE)![1];
  const models = KEPT_SHARES.map(([, shrinks]) => {
    const kept = added(w, replay(p, shrinks, layout.distribution));
    return toFloat32(added(kept, training.start));
  });
  const losses = await batchLosses(training.scorer, models, validation, rows, false);
  return KEPT_SHARES[losses.indexOf(Math.min(...losses))]![1];
}

/**
 * Returns the private state that a client would have on top of a state of the federation.
 *
 * A common intercept in that state does not change the sum of both.
 */
export function privateFit(learner: Learner, w: State, common: State | null): Promise<State> {
  return fittedWithout(learner, w, common, true);
}

/** Returns the private state of a client that fits an intercept and no readout. */
export function interceptState(
  learner: Learner,
  w: State,
  common: State | null,
): Promise<State> {
  return fittedWithout(learner, w, common, false);
}

async function fittedWithout(
  { training, layout }: Learner,
  w: State,
  common: State | null,
  withReadout: boolean,
): Promise<State> {
  const nothing = common ?? zeroState(layout.size);
  const examples = await scoredUnder(training, without(w, nothing), training.examples);
  const fit = fitPrivatePart(examples, training.readout, withReadout);
  return without(stateOf(fit, layout), nothing);
}

/** Returns the private state that a client adds to the common one while training the latter. */
export async function interceptForTraining(
  training: Training,
  layout: Layout,
  w: State,
): Promise<State> {
  const examples = await scoredUnder(training, w, training.examples);
  return stateOf(fitIntercept(examples, training.readout), layout);
}

function stateOf(fit: SoftmaxFit, layout: Layout): State {
  const [readout, bias] = [firstOf(layout, GROUP.readout), firstOf(layout, GROUP.labelBias)];
  const values: DenseValues[] = [];
  if (fit.readout.some((one) => one !== 0)) values.push(denseValues(readout, fit.readout));
  if (bias >= 0) values.push(denseValues(bias, fit.intercept));
  return replay(zeroState(layout.size), values, layout.distribution);
}

/** Returns the dense values that change one private state to another, always with a label bias. */
function differences(fitted: State, before: State, layout: Layout): DenseValues[] {
  let first = 0;
  return layout.tensors.flatMap((tensor) => {
    const end = first + tensor.rows * tensor.columns;
    const values = fitted.slice(first, end).map((value, at) => value - before[first + at]!);
    const dense = { first, values };
    first = end;
    return widest(values) > 0n || tensor.group === GROUP.labelBias ? [dense] : [];
  });
}
