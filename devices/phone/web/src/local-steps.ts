/** A client's local steps in a round: batches, projected gradients, updates, and the report. */

import type { Report } from "./answers.ts";
import type { Bytes } from "./bytes.ts";
import { TrainingError } from "./errors.ts";
import { SEED_POLICY, seedsOf, type TrainInstruction } from "./instructions.ts";
import { batchOrder, direction, type Distribution } from "./philox.ts";
import { batchLosses, perturbed, type Readout, type Represented, type Scorer } from "./readout.ts";
import { quantize, replay, toFloat32, type State } from "./replay.ts";
import { mean } from "./softmax.ts";

/** The track of clustering rounds, whose batches take examples of each label in turn. */
export const CLUSTERING_TRACK = 2 ** 32 - 2;
const REACH = 30;

/** A client's training data: its examples, and the weights to which its state is added. */
export interface Training {
  readonly client: number;
  readonly readout: Readout;
  readonly scorer: Scorer;
  readonly distribution: Distribution;
  readonly start: State;
  readonly examples: Represented;
}

/** The projected gradients of one step, with the mean loss and the curvature. */
interface Estimate {
  readonly gradients: Float32Array<ArrayBuffer>;
  readonly meanLoss: number;
  readonly curvature: number | null;
}

/** Returns the sum of two states, or of a state and weights with the same unit. */
export function added(one: State, other: State): State {
  return one.map((value, at) => value + other[at]!);
}

/** Returns the difference of two states. */
export function without(one: State, other: State): State {
  return one.map((value, at) => value - other[at]!);
}

/** Returns the examples with scores under a state instead of the base model's. */
export async function scoredUnder(
  { scorer, start }: Training,
  state: State,
  examples: Represented,
): Promise<Represented> {
  const rows = Array.from(examples.labels.keys());
  const [scores] = await scorer([toFloat32(added(state, start))], examples, rows);
  return { ...examples, scores: scores! };
}

/** Returns the number of examples in the smallest batch of an instruction's steps. */
export function smallestBatch(
  instruction: TrainInstruction,
  answers: Int32Array,
  labels: number,
): number {
  let available = answers.length;
  if (instruction.track === CLUSTERING_TRACK) {
    const counts = Array.from({ length: Math.min(labels, instruction.steps) }, (_, label) =>
      answers.reduce((count, answer) => count + (answer === label ? 1 : 0), 0),
    ).filter((count) => count > 0);
    if (counts.length) available = Math.min(...counts);
  }
  return Math.min(instruction.batch, available);
}

/**
 * Takes K local steps from a state, which is not changed, and returns the report.
 *
 * @throws TrainingError if a loss is not finite.
 * @throws ReplayError if a step does not fit the exact state.
 */
export async function takeSteps(
  instruction: TrainInstruction,
  token: Bytes,
  state: State,
  training: Training,
): Promise<Report> {
  const { client, distribution, examples } = training;
  const { steps, queries, batch, root, epsilon } = instruction;
  const count = examples.labels.length;
  const takesTurns = instruction.track === CLUSTERING_TRACK;
  const seeds = seedsOf(instruction, client);
  const gradients = new Float32Array(steps * queries);
  const losses: number[] = [];
  const curvatures: number[] = [];
  let [reached, energy] = [state, 0];
  for (let step = 0; step < steps; step++) {
    const label = step % training.readout.labels;
    let order = batchOrder(root, client, step, count);
    if (takesTurns) order = order.filter((row) => examples.labels[row] === label);
    const available = order.length;
    const rows = available ? order.subarray(0, batch) : Uint32Array.of(0);
    const own = seeds.slice(step * queries, (step + 1) * queries);
    const estimate = await estimateStep(instruction, step, own, rows, reached, training);
    if (!Number.isFinite(estimate.meanLoss) || !estimate.gradients.every(Number.isFinite))
      throw new TrainingError(`the loss is not finite at step ${step + 1}`, step + 1);
    const share = takesTurns ? Math.fround(Math.min(1, available / batch)) : 1;
    const scaled = estimate.gradients.map((gradient) => share * gradient);
    gradients.set(scaled, step * queries);
    const hasWholeBatches = !takesTurns && count <= batch;
    const isNear = energy <= (REACH * epsilon) ** 2;
    if (available && isNear && !(losses.length && hasWholeBatches))
      losses.push(estimate.meanLoss);
    if (estimate.curvature !== null) curvatures.push(estimate.curvature);
    const coefficients = coefficientsOf(instruction, clipped(instruction, scaled));
    energy += coefficients.reduce((sum, one) => sum + one * one, 0);
    const updates = quantize(coefficients).map((scalars) => ({ seeds: own, scalars }));
    reached = replay(reached, updates, distribution);
  }
  const isPooled = instruction.seedPolicy === SEED_POLICY.pool;
  return {
    token,
    client,
    examples: count,
    meanLoss: losses.length ? mean(losses) : 0,
    queries: isPooled ? 0 : queries,
    gradients: isPooled ? pooledSums(instruction, gradients) : gradients,
    summedSteps: isPooled ? steps : 0,
    curvature: curvatures.length ? mean(curvatures) : null,
  };
}

/** Returns the projected gradients along the directions of one step (P-RGE, section 3). */
async function estimateStep(
  instruction: TrainInstruction,
  step: number,
  seeds: BigUint64Array,
  rows: Uint32Array,
  state: State,
  { scorer, distribution, start, examples }: Training,
): Promise<Estimate> {
  const { epsilon, curvatureEvery, isProfiled } = instruction;
  const weights = toFloat32(added(state, start));
  const directions = Array.from(seeds, (seed) => direction(seed, weights.length, distribution));
  const moved = (sign: number): Float32Array<ArrayBuffer>[] =>
    directions.map((z) => perturbed(weights, z, epsilon, sign));
  const lossesOf = (
    some: readonly Float32Array<ArrayBuffer>[],
  ): Promise<Float64Array<ArrayBuffer>> => batchLosses(scorer, some, examples, rows, isProfiled);
  const measures = curvatureEvery > 0 && step % curvatureEvery === 0;
  if (instruction.differences === "forward" && !measures) {
    const plus = await lossesOf(moved(1));
    const center = (await lossesOf([weights]))[0]!;
    const gradients = Float32Array.from(plus, (loss) => (loss - center) / epsilon);
    return { gradients, meanLoss: center, curvature: null };
  }
  const both = await lossesOf([...moved(1), ...moved(-1)]);
  const [plus, minus] = [both.slice(0, seeds.length), both.slice(seeds.length)];
  const gradients = Float32Array.from(plus, (loss, at) => (loss - minus[at]!) / (2 * epsilon));
  const meanOfBoth = (mean(plus) + mean(minus)) / 2;
  if (!measures) return { gradients, meanLoss: meanOfBoth, curvature: null };
  const center = (await lossesOf([weights]))[0]!;
  const second = plus.map((loss, at) => loss + minus[at]! - 2 * center);
  return { gradients, meanLoss: meanOfBoth, curvature: mean(second) / epsilon ** 2 };
}

/** Returns projected gradients clipped to ±clip. */
export function clipped(
  instruction: TrainInstruction,
  gradients: Float32Array,
): Float64Array<ArrayBuffer> {
  const limit = instruction.clip ? Math.fround(instruction.clip) : Infinity;
  return Float64Array.from(gradients, (one) => Math.max(-limit, Math.min(limit, one)));
}

/** Returns the coefficients −η·g/q of a client with weight 1; components are used unchanged. */
export function coefficientsOf(
  { learningRate, queries, differences }: TrainInstruction,
  gradients: Float64Array<ArrayBuffer>,
): Float64Array<ArrayBuffer> {
  if (differences === "components") return gradients;
  return Float64Array.from(gradients, (one) => (-learningRate * one) / queries);
}

/** Returns the sum of clipped projected gradients for each used seed of a pool, rounded once. */
function pooledSums(
  instruction: TrainInstruction,
  gradients: Float32Array,
): Float32Array<ArrayBuffer> {
  const size = instruction.poolSize;
  const sums = new Float64Array(Math.min(gradients.length, size));
  clipped(instruction, gradients).forEach((one, at) => {
    sums[at % size] = sums[at % size]! + one;
  });
  return Float32Array.from(sums);
}
