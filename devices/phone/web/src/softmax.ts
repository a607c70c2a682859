/** Cross-entropies, accuracies and columns of evaluations from scores of labels. */

import type { EvaluationColumn } from "./answers.ts";

/** Scores of n examples, row by row: float32 values, [n × labels]. */
export type Scores = Float32Array<ArrayBuffer> | Float64Array<ArrayBuffer>;

/** Returns log Σ exp of the scores of one example. */
export function logSumExp(scores: Scores, first: number, labels: number): number {
  let largest = -Infinity;
  for (let at = first; at < first + labels; at++) largest = Math.max(largest, scores[at]!);
  let sum = 0;
  for (let at = first; at < first + labels; at++) sum += Math.exp(scores[at]! - largest);
  return Math.log(sum) + largest;
}

/** Returns −log softmax of the scores [n × labels] of every example at its label, in nats. */
export function crossEntropies(
  scores: Scores,
  answers: Int32Array,
  labels: number,
): Float64Array<ArrayBuffer> {
  return Float64Array.from(
    answers,
    (answer, row) => logSumExp(scores, row * labels, labels) - scores[row * labels + answer]!,
  );
}

/** Returns the mean of numbers. */
export function mean(numbers: ArrayLike<number>): number {
  let sum = 0;
  for (let at = 0; at < numbers.length; at++) sum += numbers[at]!;
  return sum / numbers.length;
}

/** Returns the label with the largest score of each example; the first one in a tie. */
export function predictions(scores: Scores, labels: number): Int32Array<ArrayBuffer> {
  return Int32Array.from({ length: scores.length / labels }, (_, row) => {
    let best = 0;
    for (let label = 1; label < labels; label++)
      if (scores[row * labels + label]! > scores[row * labels + best]!) best = label;
    return best;
  });
}

/** Returns the softmax of the scores of one example. */
export function probabilities(scores: Scores): number[] {
  const whole = logSumExp(scores, 0, scores.length);
  return Array.from(scores, (score) => Math.exp(score - whole));
}

/** Returns the mean loss and the confusion counts of scores [n × labels]. */
export function evaluationColumn(
  name: string,
  scores: Scores,
  answers: Int32Array,
  labels: number,
): EvaluationColumn {
  const counts = new Uint32Array(labels * labels);
  const predicted = predictions(scores, labels);
  answers.forEach((answer, row) => counts[answer * labels + predicted[row]!]!++);
  const losses = crossEntropies(scores, answers, labels);
  return { name, meanLoss: losses.length ? mean(losses) : 0, counts };
}

/** Returns the accuracy in confusion counts; NaN without examples. */
export function accuracy(counts: Uint32Array, labels: number): number {
  const right = counts.filter((_, at) => at % (labels + 1) === 0);
  const sum = (numbers: Uint32Array): number => numbers.reduce((all, one) => all + one, 0);
  return sum(right) / sum(counts);
}
