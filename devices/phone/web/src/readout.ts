/**
 * A readout's arithmetic: scores of examples under weights, from cached outputs of the model.
 *
 * W [labels − 1, features] is the first part of the trained numbers; a label bias may follow. The
 * scores of an example under W are those of the base model plus Hᵀ·(W·φ), where H are orthonormal
 * contrasts.
 */

import { profiledLoss } from "./profiled-loss.ts";
import { mean, crossEntropies } from "./softmax.ts";

/**
 * The constants of a readout besides an example's numbers; `contrasts` is [labels − 1 × labels].
 *
 * For adapters inside the model, there are no features, and `tokens` is the number of tokens per
 * row.
 */
export interface Readout {
  readonly labels: number;
  readonly features: number;
  readonly contrasts: Float32Array<ArrayBuffer>;
  readonly tokens: number;
}

/**
 * Examples as the worker stores them: base model scores [n × labels], features φ [n × features],
 * the tokens of rows with the index of the last one [n × tokens], and labels [n].
 */
export interface Represented {
  readonly scores: Float32Array<ArrayBuffer>;
  readonly features: Float32Array<ArrayBuffer>;
  readonly tokens: Int32Array<ArrayBuffer>;
  readonly labels: Int32Array<ArrayBuffer>;
}

/** Returns the scores [n × labels] of some examples under each of several weights. */
export type Scorer = (
  weights: readonly Float32Array<ArrayBuffer>[],
  examples: Represented,
  rows: ArrayLike<number>,
) => Promise<Float32Array<ArrayBuffer>[]>;

/** Returns the scorer of a readout. */
export function readoutScorer(readout: Readout): Scorer {
  return async (weights, examples, rows) =>
    weights.map((one) => scoresUnder(readout, one, examples, rows));
}

/** Returns the scores [n × labels] of some examples under weights, each rounded to float32. */
function scoresUnder(
  readout: Readout,
  weights: Float32Array,
  examples: Represented,
  rows: ArrayLike<number>,
): Float32Array<ArrayBuffer> {
  const { labels, features, contrasts } = readout;
  const size = (labels - 1) * features;
  const scores = new Float32Array(rows.length * labels);
  const coordinates = new Float64Array(labels - 1);
  for (let index = 0; index < rows.length; index++) {
    const row = rows[index]!;
    const phi = examples.features.subarray(row * features, (row + 1) * features);
    for (let contrast = 0; contrast < labels - 1; contrast++) {
      let sum = 0;
      const first = contrast * features;
      for (let at = 0; at < features; at++) sum += weights[first + at]! * phi[at]!;
      coordinates[contrast] = sum;
    }
    for (let label = 0; label < labels; label++) {
      let score = examples.scores[row * labels + label]!;
      for (let contrast = 0; contrast < labels - 1; contrast++)
        score += coordinates[contrast]! * contrasts[contrast * labels + label]!;
      if (weights.length > size) score += weights[size + label]!;
      scores[index * labels + label] = score;
    }
  }
  return scores;
}

/** Returns weights θ + s·ε·z, z being a direction with unit 2⁻¹¹, in float32. */
export function perturbed(
  weights: Float32Array,
  z: Int16Array,
  epsilon: number,
  sign: number,
): Float32Array<ArrayBuffer> {
  const step = Math.fround(epsilon * 2 ** -11);
  return Float32Array.from(weights, (weight, at) => weight + sign * Math.fround(z[at]! * step));
}

/** Returns the loss of some examples under each of several weights, profiled or mean, in nats. */
export async function batchLosses(
  scorer: Scorer,
  weights: readonly Float32Array<ArrayBuffer>[],
  examples: Represented,
  rows: ArrayLike<number>,
  isProfiled: boolean,
): Promise<Float64Array<ArrayBuffer>> {
  const answers = Int32Array.from(rows, (row) => examples.labels[row]!);
  const scores = await scorer(weights, examples, rows);
  return Float64Array.from(scores, (one) => {
    const labels = one.length / answers.length;
    return isProfiled
      ? profiledLoss(one, answers, labels)
      : mean(crossEntropies(one, answers, labels));
  });
}
