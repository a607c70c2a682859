/**
 * What goes wrong with what comes from outside, by the part of the format that it is in.
 *
 * `code` and `numbers` are those of the refusal that tells the server (docs/reference/wire.md). A
 * message stays on the device.
 */

import { fill, TEXTS } from "./texts.ts";

type Reason = keyof typeof TEXTS.reasons;
type Numbers = readonly [number, number];

/** An error that an instruction is refused with; without a code of its own the code is 0. */
export class PhoneError extends Error {
  readonly code: number = 0;
  readonly numbers: Numbers = [0, 0];
}

/** The run's settings cannot be used, or ask for what a browser cannot do. */
export class SettingsError extends PhoneError {
  override readonly code = 1;
}

/** The program, or what belongs to it, is damaged or does not work on this device. */
export class ProgramError extends PhoneError {
  override readonly code = 4;
}

/** Bytes are no sound frame. */
export class FrameError extends PhoneError {
  override readonly code = 5;
}

/** Changes do not fit a state. */
export class ReplayError extends PhoneError {
  override readonly code = 6;
}

/** A layout, ledger, snapshot or state is damaged, or of another run. */
export class LedgerError extends PhoneError {
  override readonly code = 7;
}

/** The rounds that came do not lead to the state that an instruction begins with. */
export class CatchUpError extends PhoneError {
  override readonly code = 8;
  override readonly numbers: Numbers;

  constructor(message: string, goal: number, reached: number) {
    super(message);
    this.numbers = [goal, reached];
  }
}

/** An instruction is for another layout than the program's. */
export class LayoutError extends PhoneError {
  override readonly code = 9;
  override readonly numbers: Numbers;

  constructor(own: number, asked: number) {
    super("the run has another adapter than this program");
    this.numbers = [own, asked];
  }
}

/** A step of training, counted from 1, failed; 0 is a private fit. */
export class TrainingError extends PhoneError {
  override readonly code = 10;
  override readonly numbers: Numbers;

  constructor(message: string, step: number) {
    super(message);
    this.numbers = [step, 0];
  }
}

/** The operator's signed scenario does not lead to an instruction. */
export class ScenarioError extends PhoneError {
  override readonly code = 17;
}

/** A step or an evaluation would use fewer examples than are allowed. */
export class BatchLimitError extends PhoneError {
  override readonly code = 18;
  override readonly numbers: Numbers;

  constructor(examples: number, least: number) {
    super(`an answer would tell of ${examples} of your examples, and it needs ${least} at least`);
    this.numbers = [examples, least];
  }
}

/** An evaluation is asked for that no client makes. */
export class EvaluationLimitError extends PhoneError {
  override readonly code = 19;
}

/** A refusal whose reason may tell of the owner's examples, in a run with differential privacy. */
export class HiddenRefusal extends PhoneError {
  override readonly code = 23;
}

/** A report would cost more privacy than the run's ε is for, or the one given is no longer kept. */
export class BudgetError extends PhoneError {
  override readonly code = 24;
}

/** Secure aggregation is not asked for as it is done. */
export class MaskingError extends PhoneError {
  override readonly code = 25;
}

/** An error that the page has a text for, which is its message; `reason` names it. */
export class PlainError extends PhoneError {
  readonly reason: Reason;

  constructor(reason: Reason) {
    super(TEXTS.reasons[reason]);
    this.reason = reason;
  }
}

/** An invitation cannot be used. */
export class InvitationError extends PlainError {}

/** The browser lets this page keep nothing, or nothing more. */
export class StorageError extends PlainError {
  override readonly code = 12;
}

/** Work was stopped that goes on later: the owner paused, or something else waits. */
export class StoppedError extends PhoneError {
  override readonly code = 13;
}

/** Returns what the owner is told of an error. */
export function problemOf(error: unknown): string {
  if (error instanceof PlainError) return error.message;
  return fill(TEXTS.problem, error instanceof Error ? error.message : String(error));
}
