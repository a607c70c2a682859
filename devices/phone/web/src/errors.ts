/**
 * Errors about data from outside, by the part of the format that they concern.
 *
 * `code` and `numbers` are sent to the server in a refusal (docs/reference/wire.md). Messages stay
 * on the device.
 */

import { fill, TEXTS } from "./texts.ts";

type Reason = keyof typeof TEXTS.reasons;
type Numbers = readonly [number, number];

/** An error that makes the client refuse an instruction; the default code is 0. */
export class PhoneError extends Error {
  readonly code: number = 0;
  readonly numbers: Numbers = [0, 0];
}

/** The run's settings are unusable, or ask for something that a browser cannot do. */
export class SettingsError extends PhoneError {
  override readonly code = 1;
}

/** The program or one of its files is damaged, or does not work on this device. */
export class ProgramError extends PhoneError {
  override readonly code = 4;
}

/** Bytes are not a valid frame. */
export class FrameError extends PhoneError {
  override readonly code = 5;
}

/** Changes do not fit a state. */
export class ReplayError extends PhoneError {
  override readonly code = 6;
}

/** A layout, ledger, snapshot or state is damaged, or belongs to another run. */
export class LedgerError extends PhoneError {
  override readonly code = 7;
}

/** The received rounds do not lead to the state with which an instruction begins. */
export class CatchUpError extends PhoneError {
  override readonly code = 8;
  override readonly numbers: Numbers;

  constructor(message: string, goal: number, reached: number) {
    super(message);
    this.numbers = [goal, reached];
  }
}

/** An instruction is for a layout other than the program's. */
export class LayoutError extends PhoneError {
  override readonly code = 9;
  override readonly numbers: Numbers;

  constructor(own: number, asked: number) {
    super("the run's adapter differs from this program's");
    this.numbers = [own, asked];
  }
}

/** A training step (counted from 1) or a private fit (0) failed. */
export class TrainingError extends PhoneError {
  override readonly code = 10;
  override readonly numbers: Numbers;

  constructor(message: string, step: number) {
    super(message);
    this.numbers = [step, 0];
  }
}

/** The operator's signed scenario does not allow an instruction. */
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

/** The server asks for an evaluation that clients never make. */
export class EvaluationLimitError extends PhoneError {
  override readonly code = 19;
}

/**
 * A refusal whose reason could reveal something about examples, in a run with differential privacy.
 */
export class HiddenRefusal extends PhoneError {
  override readonly code = 23;
}

/**
 * A report would exceed the run's or the owner's ε, or the report already given is no longer
 * stored.
 */
export class BudgetError extends PhoneError {
  override readonly code = 24;
}

/** A secure aggregation message violates the protocol. */
export class MaskingError extends PhoneError {
  override readonly code = 25;
}

/** An error for which the page has a text; the text is its message, and `reason` names it. */
export class PlainError extends PhoneError {
  readonly reason: Reason;

  constructor(reason: Reason, ...given: readonly string[]) {
    super(fill(TEXTS.reasons[reason], ...given));
    this.reason = reason;
  }
}

/** An invitation cannot be used. */
export class InvitationError extends PlainError {}

/** The browser lets this page store nothing, or nothing more. */
export class StorageError extends PlainError {
  override readonly code = 12;
}

/** Work was interrupted and will continue later: the owner paused, or other work waits. */
export class StoppedError extends PhoneError {
  override readonly code = 13;
}

/** Returns the owner's message for an error. */
export function problemOf(error: unknown): string {
  if (error instanceof PlainError) return error.message;
  return fill(TEXTS.problem, error instanceof Error ? error.message : String(error));
}
