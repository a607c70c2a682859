/** The task of a run as described by the program's index: tokenization and labels. */

import { sha256, toHex, toUtf8 } from "./bytes.ts";
import { ProgramError } from "./errors.ts";
import type { WeightsFile } from "./program.ts";

/** A file of the program, identified by its SHA-256 in hexadecimal. */
export interface ProgramFile {
  readonly sha256: string;
  readonly bytes: number;
}

/** The rule for tokenizing a text; docs/reference/wire.md documents the fields. */
export interface Tokenization {
  readonly special: boolean;
  readonly before: readonly number[] | string;
  readonly after: string;
  readonly limit: number;
  readonly answers: readonly (readonly number[])[];
}

/** The fields of a row by name, without its label. */
export type Row = Readonly<Record<string, string>>;

/** The part of a task that a browser needs. */
export interface Task {
  readonly name: string;
  readonly text: string;
  readonly words: readonly string[];
  readonly labels: readonly unknown[];
  readonly fields: readonly string[];
  readonly label?: string;
  readonly replace?: Readonly<Record<string, Readonly<Record<string, string>>>>;
}

/** The index of a program's files, with other facts for browsers. */
export interface ProgramIndex {
  readonly version: number;
  readonly manifest: ProgramFile;
  readonly graph: ProgramFile;
  readonly weights: readonly WeightsFile[];
  readonly tokenizer: Readonly<Record<string, ProgramFile>>;
  readonly task: Task;
  readonly tokenization: Tokenization;
  readonly examples: readonly {
    readonly row: Row;
    readonly ids: readonly number[];
    readonly position: number;
  }[];
}

/** Reads the index of a program; throws `ProgramError` if it is of another version. */
export function readIndex(text: string): ProgramIndex {
  const index = JSON.parse(text) as ProgramIndex;
  if (index.version !== 1)
    throw new ProgramError("the program is of another version; load the page again");
  return index;
}

/**
 * Returns the hash, in hexadecimal, under which the model's outputs for texts are stored. It covers
 * everything that they depend on: model, weights, tokenizer, and the task's way of writing a text.
 */
export async function hashOf(index: ProgramIndex): Promise<string> {
  return toHex(await sha256(toUtf8(JSON.stringify(index))));
}

/** Returns the text of a row: the template with its fields filled in. */
export function textOf(task: Task, row: Row): string {
  return task.text.replace(/\{\{|\}\}|\{([^{}]+)\}/g, (whole, field?: string) => {
    if (field === undefined) return whole[0]!;
    const name = field.split("|")[0]!;
    const value = row[name] ?? "";
    return task.replace?.[name]?.[value] ?? value;
  });
}

/** Returns the alternative names of a field in a record: `text|sentence` means either. */
export function namesOf(task: Task, field: string): string[] {
  const named = [...task.text.matchAll(/\{([^{}]+)\}/g)].map(([, names]) => names!.split("|"));
  return named.find(([first]) => first === field) ?? [field];
}

/**
 * Returns the label of a text, which is a label word or a value in the data; −1 if there is none.
 */
export function labelOf(task: Task, text: string): number {
  const named = text.trim();
  const word = task.words.findIndex((one) => one.trim() === named);
  if (word >= 0) return word;
  return task.labels.findIndex((values) =>
    (Array.isArray(values) ? values : [values]).some((value) => String(value) === named),
  );
}
