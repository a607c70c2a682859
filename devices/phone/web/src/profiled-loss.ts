/** The profiled cross-entropy: the cross-entropy under the best shift of all answers. */

import { dot, minimize, type Floats } from "./newton.ts";
import { crossEntropies, mean } from "./softmax.ts";

/**
 * Returns the lowest mean cross-entropy of scores [n × labels] plus a shift b, with |b|²/2n.
 *
 * shared/tasks/profiled_loss.py finds the same minimum by other steps.
 *
 * @throws TrainingError if a score is not finite, or the fit does not converge.
 */
export function profiledLoss(
  scores: Float32Array<ArrayBuffer>,
  answers: Int32Array<ArrayBuffer>,
  labels: number,
): number {
  const count = answers.length;
  const shift = fittedShift(scores, answers, labels);
  const shifted = Float64Array.from(scores, (score, at) => score + shift[at % labels]!);
  return mean(crossEntropies(shifted, answers, labels)) + dot(shift, shift) / (2 * count);
}

/**
 * Returns the best shift of scores [n × labels].
 *
 * @throws TrainingError if a score is not finite, or the fit does not converge.
 */
export function fittedShift(
  scores: Float32Array<ArrayBuffer>,
  answers: Int32Array<ArrayBuffer>,
  labels: number,
): Floats {
  const count = answers.length;
  const [features, tokens] = [new Float32Array(0), new Int32Array(0)];
  return minimize({
    examples: { scores, features, tokens, labels: answers },
    labels,
    penalties: new Float64Array(labels).fill(1 / (2 * count)),
    added: (numbers) => Float64Array.from(scores, (_, at) => numbers[at % labels]!),
    gathered: (slopes) => {
      const means = new Float64Array(labels);
      slopes.forEach((slope, at) => (means[at % labels]! += slope / count));
      return means;
    },
  }).numbers;
}
