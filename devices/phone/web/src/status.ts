/** The status that a client reports: its activity, its accuracies, its answers. */

import type { Limit } from "./private-reports.ts";
import type { Connection } from "./stream.ts";
import type { Task } from "./task.ts";

/** The client's current activity, with progress `done` of `of` where it can be counted. */
export interface Activity {
  readonly name: "nothing" | "loading" | "reading" | "training" | "evaluating" | "personal";
  readonly done: number;
  readonly of: number;
}

/** Accuracies on the owner's examples that are not used for training; NaN if there are none. */
export interface Accuracies {
  readonly examples: number;
  readonly base: number;
  readonly global: number;
  readonly personal: number;
}

/** Everything that the page shows. */
export interface Status {
  readonly hasJoined: boolean;
  readonly client: number;
  readonly connection: Connection;
  readonly isPaused: boolean;
  readonly isHeldBack: boolean;
  readonly activity: Activity;
  readonly task: Task | null;
  /** Size of the program; before joining, of the one that the gateway offers. */
  readonly programBytes: number;
  readonly run: string;
  readonly round: number;
  readonly rounds: number;
  readonly digest: string;
  readonly counts: readonly [number, number, number];
  /** Number of texts left out because the model's tokenizer refuses them. */
  readonly refused: number;
  /** Number of distinct labels among the training texts. */
  readonly labels: number;
  readonly accuracies: Accuracies | null;
  /** Totals of sent data; ε is the total of noised reports at δ = 10⁻⁵, 0 if there are none. */
  readonly sent: { readonly answers: number; readonly bytes: number; readonly epsilon: number };
  /** The owner's limit of that ε; 0 means none. */
  readonly epsilonLimit: number;
  /** The reason why that limit allows no further round of the run; null if it allows one. */
  readonly stoppedBy: Limit | null;
  /** The current problem in words for the owner; empty if there is none. */
  readonly problem: string;
}

/** The answers of the models to one row: probabilities of the labels. */
export interface Prediction {
  readonly labels: readonly string[];
  readonly base: readonly number[];
  readonly global: readonly number[] | null;
  readonly personal: readonly number[] | null;
}
