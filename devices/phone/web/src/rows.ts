/** Rows of examples from a file (JSON lines or CSV), or from pasted lines. */

import { PlainError } from "./errors.ts";
import { SPLIT } from "./instructions.ts";
import type { NewExample } from "./own-examples.ts";
import { labelOf, namesOf, type Row, type Task } from "./task.ts";

const MOST_LETTERS = 2 ** 20;

/**
 * Valid examples, and the numbers of invalid lines. If there is no example because the first row
 * lacks columns, it also holds the missing and the existing column names.
 */
export interface ReadRows {
  readonly examples: readonly NewExample[];
  readonly wrongLines: readonly number[];
  readonly lacks: { readonly missing: readonly string[]; readonly found: readonly string[] } | null;
}

/** Reads a file of labelled rows: JSON lines if its first character is a brace, otherwise CSV. */
export function readRows(text: string, task: Task): ReadRows {
  const isJson = text.trimStart().startsWith("{");
  const [names, records] = isJson ? jsonLines(text) : csvRecords(text);
  const examples: NewExample[] = [];
  const wrongLines: number[] = [];
  for (const [line, record] of records) {
    const example = record && exampleOf(record, task);
    if (example) examples.push(example);
    else wrongLines.push(line);
  }
  const missing = columnsOf(task).filter((column) => !column.some((name) => names.includes(name)));
  const isLacking = !examples.length && names.length > 0 && missing.length > 0;
  const lacks = isLacking ? { missing: missing.map(([name]) => name!), found: names } : null;
  return { examples, wrongLines, lacks };
}

/** Returns whether an example has a text in each field and a label of the task. */
export function isSound({ row, label, split }: NewExample, task: Task): boolean {
  return (
    hasTexts(row, task) &&
    Number.isInteger(label) &&
    label >= 0 &&
    label < task.words.length &&
    (split === undefined || Object.values<number>(SPLIT).includes(split))
  );
}

/** Throws `PlainError` if a row lacks a text in a field of the task. */
export function checkTexts(row: Row, task: Task): void {
  if (!hasTexts(row, task)) throw new PlainError("row", task.fields.join(", "));
}

function hasTexts(row: Row, task: Task): boolean {
  const isText = (value: unknown): boolean =>
    typeof value === "string" &&
    value.trim() !== "" &&
    value.length <= MOST_LETTERS &&
    !HALF_A_PAIR.test(value);
  return task.fields.every((field) => isText(row?.[field]));
}

/** An unpaired surrogate, which no client accepts. */
const HALF_A_PAIR = /\p{Surrogate}/u;

function columnsOf(task: Task): string[][] {
  const fields = task.fields.map((field) => namesOf(task, field));
  return [...fields, (task.label ?? "label").split("|")];
}

function exampleOf(record: Readonly<Record<string, unknown>>, task: Task): NewExample | null {
  const texts = task.fields.map((field) => [field, valueOf(record, namesOf(task, field))]);
  const label = labelOf(task, String(valueOf(record, (task.label ?? "label").split("|")) ?? ""));
  const splits: Readonly<Record<string, number>> = SPLIT;
  const split = splits[String(record["split"] ?? "")];
  const example = { row: Object.fromEntries(texts) as Row, label };
  if (!isSound(example, task)) return null;
  return split === undefined ? example : { ...example, split };
}

function valueOf(record: Readonly<Record<string, unknown>>, names: readonly string[]): unknown {
  return record[names.find((name) => name in record) ?? ""];
}

type Records = [number, Record<string, unknown> | null][];

/** Returns the names in the first record, and all records by line; null marks an invalid line. */
function jsonLines(text: string): [string[], Records] {
  const records = text.split("\n").flatMap((line, at): Records => {
    if (!line.trim()) return [];
    try {
      const value: unknown = JSON.parse(line);
      const isRecord = typeof value === "object" && value !== null;
      return [[at + 1, isRecord ? (value as Record<string, unknown>) : null]];
    } catch {
      return [[at + 1, null]];
    }
  });
  return [Object.keys(records[0]?.[1] ?? {}), records];
}

/** Splits CSV with a header line; within quoted fields, two quotes stand for one. */
function csvRecords(text: string): [string[], Records] {
  const lines = csvLines(text);
  const names = (lines.shift()?.[1] ?? []).map((name) => name.trim());
  const records = lines.map(([line, cells]): Records[number] => {
    const isRecord = cells?.length === names.length;
    return [line, isRecord ? Object.fromEntries(names.map((name, at) => [name, cells[at]])) : null];
  });
  return [names, records];
}

/** Returns the cells of each non-empty line; null marks a quote that is not closed. */
function csvLines(text: string): [number, string[] | null][] {
  const lines: [number, string[] | null][] = [];
  let [at, line] = [0, 1];
  while (at < text.length) {
    const [start, cells] = [line, [] as string[]];
    let [isSound, isLast] = [true, false];
    while (!isLast) {
      const quoted = quotedCell(text, at);
      const [cell, end] = quoted ?? plainCell(text, at);
      isSound &&= quoted !== null || !cell.startsWith('"');
      cells.push(cell);
      line += text.slice(at, end).match(LINE_END)?.length ?? 0;
      isLast = text[end] !== ",";
      at = end + (text.startsWith("\r\n", end) ? 2 : 1);
    }
    line += 1;
    if (cells.some((cell) => cell !== "")) lines.push([start, isSound ? cells : null]);
  }
  return lines;
}

const LINE_END = /\r\n|\r|\n/g;

/** Returns a quoted cell and its end; null if there is none at this position. */
function quotedCell(text: string, at: number): [string, number] | null {
  if (text[at] !== '"') return null;
  let end = text.indexOf('"', at + 1);
  while (end >= 0 && text[end + 1] === '"') end = text.indexOf('"', end + 2);
  const isWhole = end >= 0 && (end + 1 === text.length || ",\r\n".includes(text[end + 1]!));
  return isWhole ? [text.slice(at + 1, end).replaceAll('""', '"'), end + 1] : null;
}

function plainCell(text: string, at: number): [string, number] {
  const cell = /[^,\r\n]*/y;
  cell.lastIndex = at;
  const [content] = cell.exec(text)!;
  return [content, at + content.length];
}

/** Returns pasted lines as examples with one label, one text each. */
export function pastedRows(text: string, field: string, label: number): NewExample[] {
  const lines = text.split("\n").map((line) => line.trim());
  return lines.filter(Boolean).map((line) => ({ row: { [field]: line } as Row, label }));
}
