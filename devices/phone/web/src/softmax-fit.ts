/**
 * Exact fits of what a client adds to a model's scores: an intercept per label, and a readout.
 *
 * The loss is convex. Newton's method finds its only minimum, with conjugate gradients for the steps
 * (client/personal/newton.py); penalties are chosen by cross-validation among the client's own
 * training examples (client/personal/softmax_fit.py).
 */

import { TrainingError } from "./errors.ts";
import type { Readout, Represented } from "./readout.ts";
import { logSumExp, mean } from "./softmax.ts";

type Floats = Float64Array<ArrayBuffer>;

const INTERCEPT_DEVIATIONS = [0.25, 0.5, 1, 2, 4];
const TRAINING_DEVIATION = 2;
const READOUT_DEVIATIONS = [0, 0.25, 0.5, 1, 2, 4];
const FOLDS = 5;
const BIAS_PENALTY = 1e-3;
const GRADIENT_TOLERANCE = 1e-10;
const ACCEPTED_GRADIENT = 1e-5;
const MAX_STEPS = 100;
const SUFFICIENT_DECREASE = 1e-4;
const SMALLEST_STEP = 1e-10;

/** What is added to scores: an intercept [labels], and Hᵀ·V·φ of a readout V [labels − 1 × features]. */
export interface SoftmaxFit {
  readonly intercept: Floats;
  readonly readout: Floats;
}

/** Returns the intercept that a client trains the common model with. */
export function fitIntercept(examples: Represented, readout: Readout): SoftmaxFit {
  return fitPrior(examples, readout, TRAINING_DEVIATION, 0, 1);
}

/** Returns the label bias with the least cross-entropy on a client's training examples. */
export function fitLabelBias(examples: Represented, readout: Readout): Floats {
  return solve(examples, readout, false, BIAS_PENALTY, BIAS_PENALTY).intercept;
}

/**
 * Returns the fit of an intercept, and of a readout if that is asked for, whose penalties are chosen
 * by cross-validation.
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

/** Returns the index of the first losses that are not clearly worse than the least. */
function strongestWithinOneError(losses: readonly Floats[]): number {
  const best = losses.reduce((least, one) => (mean(one) < mean(least) ? one : least));
  return losses.findIndex((values) => {
    const difference = values.map((value, at) => value - best[at]!);
    const center = mean(difference);
    const squares = difference.reduce((sum, one) => sum + (one - center) ** 2, 0);
    return center <= Math.sqrt(squares / (difference.length - 1) / difference.length);
  });
}

/** Returns the fit under Gaussian priors of what is added to the log-odds of two labels. */
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

/** Returns the examples in at most 5 folds, with each label dealt evenly among them. */
function foldsOf(answers: Int32Array): number[][] {
  const order = Array.from(answers.keys()).sort((a, b) => answers[a]! - answers[b]! || a - b);
  return Array.from({ length: Math.min(FOLDS, order.length) }, (_, first) =>
    order.filter((_, at) => at % FOLDS === first).sort((a, b) => a - b),
  );
}

/** Returns some of the examples. */
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
    tokens: new Int32Array(), // what is fitted here runs no model
    labels: Int32Array.from(rows, (row) => labels[row]!),
  };
}

function logitsOf(examples: Represented, readout: Readout, fit: SoftmaxFit): Floats {
  const moved = addedScores(examples, readout, fit.intercept, fit.readout);
  return moved.map((value, at) => value + examples.scores[at]!);
}

/** Returns what an intercept and a readout, empty for none, add to the scores [n × labels]. */
function addedScores(
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

/** Returns the mean of slopes in the logits [n × labels] as slopes in intercept and readout. */
function gathered(
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

const dot = (one: Floats, other: Floats): number =>
  one.reduce((sum, value, at) => sum + value * other[at]!, 0);

/** Returns the intercept b and the readout V with the least penalized mean cross-entropy. */
function solve(
  examples: Represented,
  readout: Readout,
  withReadout: boolean,
  interceptPenalty: number,
  readoutPenalty: number,
): SoftmaxFit {
  const { labels, features } = readout;
  const { scores, labels: answers } = examples;
  const isFinite = scores.every(Number.isFinite) && examples.features.every(Number.isFinite);
  if (!isFinite) throw new TrainingError("a score or a feature is not finite", 0);
  const size = labels + (withReadout ? (labels - 1) * features : 0);
  const penalties = new Float64Array(size).fill(readoutPenalty);
  penalties.fill(interceptPenalty, 0, labels);
  const addedBy = (numbers: Floats): Floats =>
    addedScores(examples, readout, numbers.subarray(0, labels), numbers.subarray(labels));
  const logitsAt = (numbers: Floats): Floats =>
    addedBy(numbers).map((value, at) => value + scores[at]!);
  const lossOf = (logits: Floats, numbers: Floats): number => {
    const losses = Float64Array.from(
      answers,
      (answer, row) => logSumExp(logits, row * labels, labels) - logits[row * labels + answer]!,
    );
    return mean(losses) + numbers.reduce((sum, one, at) => sum + penalties[at]! * one * one, 0);
  };
  const penalized = (slopes: Floats, numbers: Floats): Floats =>
    gathered(slopes, examples, readout, withReadout).map(
      (slope, at) => slope + 2 * penalties[at]! * numbers[at]!,
    );
  let numbers = new Float64Array(size);
  let largest = Infinity;
  for (let step = 0; step < MAX_STEPS; step++) {
    const logits = logitsAt(numbers);
    const shares = logits.map((logit, at) => {
      const first = at - (at % labels);
      return Math.exp(logit - logSumExp(logits, first, labels));
    });
    const errors = shares.slice();
    answers.forEach((answer, row) => errors[row * labels + answer]!--);
    const gradient = penalized(errors, numbers);
    largest = gradient.reduce((most, one) => Math.max(most, Math.abs(one)), 0);
    if (largest < GRADIENT_TOLERANCE) break;
    const product = (vector: Floats): Floats => {
      const moved = addedBy(vector);
      const centers = Float64Array.from(answers, (_, row) => {
        let sum = 0;
        for (let at = row * labels; at < (row + 1) * labels; at++) sum += shares[at]! * moved[at]!;
        return sum;
      });
      const slopes = shares.map(
        (share, at) => share * (moved[at]! - centers[Math.floor(at / labels)]!),
      );
      return penalized(slopes, vector);
    };
    const direction = conjugateGradients(product, gradient);
    const [loss, slope] = [lossOf(logits, numbers), dot(gradient, direction)];
    const stepped = (share: number): Floats =>
      numbers.map((value, at) => value - share * direction[at]!);
    let share = 1;
    while (share > SMALLEST_STEP) {
      const next = stepped(share);
      if (lossOf(logitsAt(next), next) <= loss - SUFFICIENT_DECREASE * share * slope) break;
      share /= 2;
    }
    if (share <= SMALLEST_STEP) break; // the loss differs by its rounding only
    numbers = stepped(share);
  }
  if (!(largest < ACCEPTED_GRADIENT))
    throw new TrainingError("the private fit did not converge", 0);
  const fitted = new Float64Array((labels - 1) * features);
  fitted.set(numbers.subarray(labels));
  return { intercept: numbers.slice(0, labels), readout: fitted };
}

/** Returns x with A·x = b, nearly, for a positive definite A. */
function conjugateGradients(product: (vector: Floats) => Floats, right: Floats): Floats {
  const norm = Math.sqrt(dot(right, right));
  let [solution, residual, direction] = [new Float64Array(right.length), right, right];
  let square = norm ** 2;
  for (let step = 0; step < 2 * right.length; step++) {
    if (Math.sqrt(square) <= Math.min(1e-2, norm) * norm) break;
    const moved = product(direction);
    const length = square / dot(direction, moved);
    solution = solution.map((value, at) => value + length * direction[at]!);
    residual = residual.map((value, at) => value - length * moved[at]!);
    const before = square;
    square = dot(residual, residual);
    direction = residual.map((value, at) => value + (square / before) * direction[at]!);
  }
  return solution;
}
