/**
 * The columns of a client's evaluation: its personal model compared with the global model and
 * baselines.
 */

import type { EvaluationColumn } from "./answers.ts";
import { SPLIT } from "./instructions.ts";
import { added, scoredUnder } from "./local-steps.ts";
import {
  interceptState,
  nextRecord,
  privateFit,
  type Learner,
  type PrivateProgress,
} from "./private-rounds.ts";
import { profiledLoss } from "./profiled-loss.ts";
import type { Represented } from "./readout.ts";
import { replay, zeroState, type State } from "./replay.ts";
import { replayed } from "./round-delta.ts";
import type { RunTerms } from "./run-terms.ts";
import { evaluationColumn, type Scores } from "./softmax.ts";
import { fitLabelBias } from "./softmax-fit.ts";

/** Evaluates the federation's model on a client's examples in a split. */
export async function globalColumns(
  learner: Learner,
  terms: RunTerms,
  w: State,
  split: number,
  examples: Represented,
  common: State | null,
): Promise<EvaluationColumn[]> {
  const columns = [await globalColumn(learner, terms, w, split, examples)];
  if (terms.method === "readout" && terms.returnsToBest && split === SPLIT.validation)
    columns.push(
      await columnOf(
        learner,
        "personalized",
        added(w, await privateFit(learner, w, common)),
        examples,
      ),
    );
  return columns;
}

/** Evaluates the federation's model; a run with shifts is validated by the profiled loss. */
async function globalColumn(
  { training }: Learner,
  terms: RunTerms,
  w: State,
  split: number,
  examples: Represented,
): Promise<EvaluationColumn> {
  const { labels } = training.readout;
  const { scores } = await scoredUnder(training, w, examples);
  const column = evaluationColumn("global", scores, examples.labels, labels);
  if (!terms.reportsShifts || split !== SPLIT.validation || !examples.labels.length) return column;
  return { ...column, meanLoss: profiledLoss(scores, examples.labels, labels) };
}

/**
 * Evaluates every column of the personal comparison; outside the test split, only the personal model.
 */
export async function personalColumns(
  learner: Learner,
  terms: RunTerms,
  w: State,
  p: State,
  split: number,
  examples: Represented,
  common: State | null,
): Promise<EvaluationColumn[]> {
  const personalized = await columnOf(learner, "personalized", added(w, p), examples);
  if (split !== SPLIT.test) return [personalized];
  const { training } = learner;
  const { labels } = training.readout;
  const column = (name: string, scores: Scores): EvaluationColumn =>
    evaluationColumn(name, scores, examples.labels, labels);
  const bias = fitLabelBias(training.examples, training.readout).map(Math.fround);
  const zeroShot = examples.scores;
  const rate = baseRate(training.examples.labels, labels);
  const columns = [
    column("base rate", zeroShot.map((_, at) => rate[at % labels]!)),
    column("zero-shot", zeroShot),
    column("label bias", zeroShot.map((score, at) => score + bias[at % labels]!)),
  ];
  if (terms.method === "finetune")
    columns.push(
      await columnOf(learner, "local-only", await trainedAlone(learner, terms), examples),
    );
  columns.push(await columnOf(learner, "global", w, examples));
  if (terms.method === "readout") {
    const intercept = added(w, await interceptState(learner, w, common));
    columns.push(await columnOf(learner, "intercept", intercept, examples));
  }
  return [...columns, personalized];
}

/** Evaluates a state on examples: mean loss and confusion counts. */
export async function columnOf(
  { training }: Learner,
  name: string,
  state: State,
  examples: Represented,
): Promise<EvaluationColumn> {
  const { scores } = await scoredUnder(training, state, examples);
  return evaluationColumn(name, scores, examples.labels, training.readout.labels);
}

/** Returns the log frequencies of a client's training labels, with each count increased by one. */
function baseRate(answers: Int32Array, labels: number): Float32Array {
  const counts = new Float64Array(labels).fill(1);
  answers.forEach((answer) => counts[answer]!++);
  return Float32Array.from(counts, (count) => Math.log(count / (answers.length + labels)));
}

/** Returns the private state of a client that trains alone, without a federation. */
async function trainedAlone(learner: Learner, terms: RunTerms): Promise<State> {
  const { layout } = learner;
  const state = zeroState(layout.size);
  let progress: PrivateProgress = { first: 1, deltas: [], observations: [], state };
  for (;;) {
    const next = await nextRecord(learner, terms, state, progress);
    if (!next) return progress.state;
    const { delta, observation } = next;
    progress = {
      first: 1,
      deltas: [...progress.deltas, delta],
      observations: observation
        ? [...progress.observations, observation]
        : progress.observations,
      state: replay(progress.state, replayed(delta), layout.distribution),
    };
  }
}
