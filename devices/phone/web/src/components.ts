/**
 * Components of a client's own update, along directions shared by the clients of a round.
 *
 * The client minimizes its loss in the span of the round's q orthogonal directions, with a penalty
 * on the length of the update (client/personal/components.py), and reports the q numbers.
 */

import type { Report } from "./answers.ts";
import type { Bytes } from "./bytes.ts";
import { SettingsError, TrainingError } from "./errors.ts";
import { seedsOf, type TrainInstruction } from "./instructions.ts";
import { scoredUnder, takeSteps, type Training } from "./local-steps.ts";
import { dot, minimize, type Floats, type Minimum } from "./newton.ts";
import { batchOrder, direction } from "./philox.ts";
import type { Readout, Represented } from "./readout.ts";
import type { State } from "./replay.ts";
import { addedScores, gathered, part } from "./softmax-fit.ts";

/**
 * Returns the report on a round, from local steps or from components of the client's own update.
 *
 * @throws PhoneError as in `takeSteps` and `reportComponents`.
 */
export function trainForARound(
  instruction: TrainInstruction,
  token: Bytes,
  state: State,
  training: Training,
): Promise<Report> {
  const train = instruction.differences === "components" ? reportComponents : takeSteps;
  return train(instruction, token, state, training);
}

/**
 * Returns the report of a client's own update from a state, which is not changed.
 *
 * @throws SettingsError if the adapter is not a readout alone with orthogonal directions.
 * @throws TrainingError if there is no example, a score is not finite, or no minimum is found.
 */
async function reportComponents(
  instruction: TrainInstruction,
  token: Bytes,
  state: State,
  training: Training,
): Promise<Report> {
  const { client, examples, readout, distribution } = training;
  if (!readout.features || distribution !== "orthogonal")
    throw new SettingsError("components need a readout alone and orthogonal directions");
  const { root, batch, queries, learningRate } = instruction;
  const count = examples.labels.length;
  if (!count) throw new TrainingError("there is no training example left", 0);
  const order = batchOrder(root, client, 0, count);
  const rows = Array.from(order.subarray(0, batch)).sort((a, b) => a - b);
  const scored = await scoredUnder(training, state, examples);
  const own = part(scored, readout, rows);
  const z = Array.from(seedsOf(instruction, client), (seed) =>
    Float64Array.from(direction(seed, state.length, distribution), (one) => one * 2 ** -11),
  );
  const { numbers, lossBefore } = findComponents(own, readout, z, learningRate);
  return {
    token,
    client,
    examples: count,
    meanLoss: lossBefore,
    queries,
    gradients: Float32Array.from(numbers),
    summedSteps: 0,
    curvature: null,
  };
}

/** Returns the components of the update with the lowest loss in the span of directions [q][d]. */
function findComponents(
  examples: Represented,
  readout: Readout,
  z: readonly Floats[],
  rate: number,
): Minimum {
  const { labels, features } = readout;
  const size = (labels - 1) * features;
  const count = examples.labels.length;
  const square = examples.features.reduce((sum, one) => sum + one * one, 0) / count || 1;
  const factor = square / (2 * count * rate);
  const update = new Float64Array(z[0]!.length);
  return minimize({
    examples,
    labels,
    penalties: Float64Array.from(z, (one) => factor * dot(one, one)),
    added: (numbers) => {
      update.fill(0);
      numbers.forEach((number, row) => {
        const own = z[row]!;
        for (let at = 0; at < own.length; at++) update[at]! += number * own[at]!;
      });
      const bias = new Float64Array(labels);
      bias.set(update.subarray(size));
      return addedScores(examples, readout, bias, update.subarray(0, size));
    },
    gathered: (slopes) => {
      const both = gathered(slopes, examples, readout, true);
      update.set(both.subarray(labels, labels + size));
      update.set(both.subarray(0, update.length - size), size);
      return Float64Array.from(z, (one) => dot(one, update));
    },
  });
}
