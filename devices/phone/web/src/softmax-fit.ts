/**
 * Exact fits of a client's additions to a model's scores: an intercept per label, and a readout.
 *
 * The loss is convex, and Newton's method finds its only minimum (newton.ts). Penalties are chosen
 * by cross-validation on the client's training examples (client/personal/softmax_fit.py).
 */

import { minimize, type Floats } from "./newton.ts";
import type { Readout, Represented } from "./readout.ts";
import { logSumExp, mean } from "./softmax.ts";

const INTERCEPT_DEVIATIONS = [0.25, 0.5, 1, 2, 4];
const TRAINING_DEVIATION = 2;
const READOUT_DEVIATIONS = [0, 0.25, 0.5, 1, 2, 4];
const FOLDS = 5;
const BIAS_PENALTY = 1e-3;

/**
 * Additions to scores: an intercept [labels], and Hᵀ·V·φ of a readout V [labels − 1 × features].
 */
export interface SoftmaxFit {
  readonly intercept: Floats;
  readonly readout: Floats;
}

/** Returns the intercept that a client uses while training the common model. */
export function fitIntercept(examples: Represented, readout: Readout): SoftmaxFit {
  return fitPrior(examples, readout, TRAINING_DEVIATION, 0, 1);
}

/** Returns the label bias with the lowest cross-entropy on a client's training examples. */
export function fitLabelBias(examples: Represented, readout: Readout): Floats {
  return solve(examples, readout, false, BIAS_PENALTY, BIAS_PENALTY).intercept;
}

/**
 * Returns the fit of an intercept and, if requested, of a readout, with penalties chosen by
 * cross-validation.
 *
 * @throws TrainingError if a number is not finite, or the method does not converge.
 */
export function fitPrivatePart(
  examples: Represented,
  readout: Readout,
  withReadout: boolean,
): SoftmaxFit {
  const count = examples.labels.length;
  const squares = examples.features.reduce((sum, one) => sum + one * one, 0) / count;
  const squaredNorm = withReadout && squares > 0 && Number.isFinite(squares) ? squares : 1;
  const folds = foldsOf(examples.labels);
  const losses = (intercept: number, deviation: number): Floats => {
    const heldOut = new Float64Array(count);
    for (const fold of folds) {
      const others = Array.from(examples.labels.keys()).filter((row) => !fold.includes(row));
      const rest = part(examples, readout, others);
      const fit = fitPrior(rest, readout, intercept, deviation, squaredNorm);
      const logits = logitsOf(part(examples, readout, fold), readout, fit);
      fold.forEach((row, at) => {
        const own = logits[at * readout.labels + examples.labels[row]!]!;
        heldOut[row] = logSumExp(logits, at * readout.labels, readout.labels) - own;
      });
    }
    return heldOut;
  };
  let [intercept, deviation] = [INTERCEPT_DEVIATIONS[0]!, 0];
  if (count > 1) {
    const byIntercept = INTERCEPT_DEVIATIONS.map((one) => mean(losses(one, 0)));
    intercept = INTERCEPT_DEVIATIONS[byIntercept.indexOf(Math.min(...byIntercept))]!;
    if (withReadout) {
      const byReadout = READOUT_DEVIATIONS.map((one) => losses(intercept, one));
      deviation = READOUT_DEVIATIONS[strongestWithinOneError(byReadout)]!;
    }
  }
  return fitPrior(examples, readout, intercept, deviation, squaredNorm);
}

/** Returns the index of the first losses that are not clearly worse than the lowest. */
function strongestWithinOneError(losses: readonly Floats[]): number {
  const best = losses.reduce((least, one) => (mean(one) < mean(least) ? one : least));
  return losses.findIndex((values) => {
    const difference = values.map((value, at) => value - best[at]!);
    const center = mean(difference);
    const squares = difference.reduce((sum, one) => sum + (one - center) ** 2, 0);
    return center <= Math.sqrt(squares / (difference.length - 1) / difference.length);
  });
}

/** Returns the fit under Gaussian priors on the addition to the log-odds of two labels. */
function fitPrior(
  examples: Represented,
  readout: Readout,
  intercept: number,
  deviation: number,
  squaredNorm: number,
): SoftmaxFit {
  const count = examples.labels.length;
  const penalty = deviation ? squaredNorm / (count * deviation ** 2) : 1;
  return solve(examples, readout, deviation > 0, 1 / (count * intercept ** 2), penalty);
}

/** Returns the examples in up to 5 folds, with each label dealt evenly among them. */
function foldsOf(answers: Int32Array): number[][] {
  const order = Array.from(answers.keys()).sort((a, b) => answers[a]! - answers[b]! || a - b);
  return Array.from({ length: Math.min(FOLDS, order.length) }, (_, first) =>
    order.filter((_, at) => at % FOLDS === first).sort((a, b) => a - b),
  );
}

/** Returns a subset of the examples. */
export function part(
  { scores, features, labels }: Represented,
  readout: Readout,
  rows: readonly number[],
): Represented {
  const some = (numbers: Float32Array, width: number): Float32Array<ArrayBuffer> => {
    const taken = new Float32Array(rows.length * width);
    rows.forEach((row, at) =>
      taken.set(numbers.subarray(row * width, (row + 1) * width), at * width),
    );
    return taken;
  };
  return {
    scores: some(scores, readout.labels),
    features: some(features, readout.features),
    tokens: new Int32Array(), // fits do not run the model
    labels: Int32Array.from(rows, (row) => labels[row]!),
  };
}

function logitsOf(examples: Represented, readout: Readout, fit: SoftmaxFit): Floats {
  const moved = addedScores(examples, readout, fit.intercept, fit.readout);
  return moved.map((value, at) => value + examples.scores[at]!);
}

/**
 * Returns the additions of an intercept and a readout (possibly empty) to the scores [n × labels].
 */
export function addedScores(
  { features: phi, labels: answers }: Represented,
  { labels, features, contrasts }: Readout,
  intercept: Floats,
  readout: Floats,
): Floats {
  const added = new Float64Array(answers.length * labels);
  for (let row = 0; row < answers.length; row++) {
    for (let label = 0; label < labels; label++) added[row * labels + label] = intercept[label]!;
    for (let contrast = 0; contrast * features < readout.length; contrast++) {
      let sum = 0;
      for (let at = 0; at < features; at++)
        sum += readout[contrast * features + at]! * phi[row * features + at]!;
      for (let label = 0; label < labels; label++)
        added[row * labels + label]! += sum * contrasts[contrast * labels + label]!;
    }
  }
  return added;
}

/**
 * Returns the gradients of intercept and readout from those of the logits [n × labels], averaged.
 */
export function gathered(
  slopes: Floats,
  { features: phi, labels: answers }: Represented,
  { labels, features, contrasts }: Readout,
  withReadout: boolean,
): Floats {
  const count = answers.length;
  const numbers = new Float64Array(labels + (withReadout ? (labels - 1) * features : 0));
  for (let row = 0; row < count; row++) {
    for (let label = 0; label < labels; label++)
      numbers[label]! += slopes[row * labels + label]! / count;
    for (let contrast = 0; withReadout && contrast < labels - 1; contrast++) {
      let slope = 0;
      for (let label = 0; label < labels; label++)
        slope += contrasts[contrast * labels + label]! * slopes[row * labels + label]!;
      const first = labels + contrast * features;
      for (let at = 0; at < features; at++)
        numbers[first + at]! += (slope * phi[row * features + at]!) / count;
    }
  }
  return numbers;
}

/** Returns the intercept b and the readout V with the lowest penalized mean cross-entropy. */
function solve(
  examples: Represented,
  readout: Readout,
  withReadout: boolean,
  interceptPenalty: number,
  readoutPenalty: number,
): SoftmaxFit {
  const { labels, features } = readout;
  const size = labels + (withReadout ? (labels - 1) * features : 0);
  const penalties = new Float64Array(size).fill(readoutPenalty);
  penalties.fill(interceptPenalty, 0, labels);
  const { numbers } = minimize({
    examples,
    labels,
    penalties,
    added: (numbers) =>
      addedScores(examples, readout, numbers.subarray(0, labels), numbers.subarray(labels)),
    gathered: (slopes) => gathered(slopes, examples, readout, withReadout),
  });
  const fitted = new Float64Array((labels - 1) * features);
  fitted.set(numbers.subarray(labels));
  return { intercept: numbers.slice(0, labels), readout: fitted };
}
