/**
 * Newton's method for a penalized mean cross-entropy whose variables enter the logits linearly.
 *
 * The loss is convex, with a single minimum. Conjugate gradients find the steps, so that the
 * Hessian is never formed (client/personal/newton.py).
 */

import { TrainingError } from "./errors.ts";
import type { Represented } from "./readout.ts";
import { logSumExp, mean } from "./softmax.ts";

export type Floats = Float64Array<ArrayBuffer>;

const GRADIENT_TOLERANCE = 1e-10;
const ACCEPTED_GRADIENT = 1e-5;
const MAX_STEPS = 100;
const SUFFICIENT_DECREASE = 1e-4;
const SMALLEST_STEP = 1e-10;

/** The loss of n examples as a function of some variables, each with a quadratic penalty factor. */
export interface Problem {
  readonly examples: Represented;
  readonly labels: number;
  readonly penalties: Floats;
  /** Returns the contribution of the variables to the logits, [n × labels]. */
  added(numbers: Floats): Floats;
  /**
   * Returns the gradient in the variables from the gradient in the logits [n × labels], averaged.
   */
  gathered(slopes: Floats): Floats;
}

/** The variables with the lowest loss, and the loss at zero. */
export interface Minimum {
  readonly numbers: Floats;
  readonly lossBefore: number;
}

/** Returns the dot product of two vectors. */
export function dot(one: Floats, other: Floats): number {
  let sum = 0;
  for (let at = 0; at < one.length; at++) sum += one[at]! * other[at]!;
  return sum;
}

/**
 * Returns the variables with the lowest loss, starting from zero.
 *
 * @throws TrainingError if a score or a feature is not finite, or the method does not converge.
 */
export function minimize({ examples, labels, penalties, added, gathered }: Problem): Minimum {
  const { scores, labels: answers } = examples;
  const isFinite = scores.every(Number.isFinite) && examples.features.every(Number.isFinite);
  if (!isFinite) throw new TrainingError("a score or a feature is not finite", 0);
  const logitsAt = (numbers: Floats): Floats =>
    added(numbers).map((value, at) => value + scores[at]!);
  const lossOf = (logits: Floats, numbers: Floats): number => {
    const losses = Float64Array.from(
      answers,
      (answer, row) => logSumExp(logits, row * labels, labels) - logits[row * labels + answer]!,
    );
    return mean(losses) + numbers.reduce((sum, one, at) => sum + penalties[at]! * one * one, 0);
  };
  const penalized = (slopes: Floats, numbers: Floats): Floats =>
    gathered(slopes).map((slope, at) => slope + 2 * penalties[at]! * numbers[at]!);
  let numbers: Floats = new Float64Array(penalties.length);
  const lossBefore = lossOf(logitsAt(numbers), numbers);
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
      const moved = added(vector);
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
    if (share <= SMALLEST_STEP) break; // the change of the loss is within rounding
    numbers = stepped(share);
  }
  if (!(largest < ACCEPTED_GRADIENT)) throw new TrainingError("the fit did not converge", 0);
  return { numbers, lossBefore };
}

/** Returns an approximate solution x of A·x = b for a positive definite A. */
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
