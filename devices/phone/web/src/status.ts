/** What a client says of itself: its status, its accuracies, its answers. */

import type { Limit } from "./private-reports.ts";
import type { Connection } from "./stream.ts";
import type { Task } from "./task.ts";

/** What the client is doing; `done` of `of` where it can be counted. */
export interface Activity {
  readonly name: "nothing" | "loading" | "reading" | "training" | "evaluating" | "personal";
  readonly done: number;
  readonly of: number;
}

/** Accuracies on the owner's examples that no training has seen; NaN without any. */
export interface Accuracies {
  readonly examples: number;
  readonly base: number;
  readonly global: number;
  readonly personal: number;
}

/** All that the page shows. */
export interface Status {
  readonly hasJoined: boolean;
  readonly client: number;
  readonly connection: Connection;
  readonly isPaused: boolean;
  readonly isHeldBack: boolean;
  readonly activity: Activity;
  readonly task: Task | null;
  readonly programBytes: number;
  readonly run: string;
  readonly round: number;
  readonly rounds: number;
  readonly digest: string;
  readonly counts: readonly [number, number, number];
  /** The texts that are left out, as the model's tokenizer refuses them. */
  readonly refused: number;
  /** The different labels of the texts to learn from. */
  readonly labels: number;
  readonly accuracies: Accuracies | null;
  /** What has left; ε at δ = 10⁻⁵ of the reports with noise together, 0 without any. */
  readonly sent: { readonly answers: number; readonly bytes: number; readonly epsilon: number };
  /** The owner's limit of that ε; 0 for none. */
  readonly epsilonLimit: number;
  /** What of that limit lets no further round of the run be answered. */
  readonly stoppedBy: Limit | null;
  /** What is wrong, as the owner is told; empty if nothing is. */
  readonly problem: string;
}

/** The answers of the models to one row: probabilities of the labels. */
export interface Prediction {
  readonly labels: readonly string[];
  readonly base: readonly number[];
  readonly global: readonly number[] | null;
  readonly personal: readonly number[] | null;
}
