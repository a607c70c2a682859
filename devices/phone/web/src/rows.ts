/** Rows of examples from a file (JSON lines or CSV), or from pasted lines. */

import { SPLIT } from "./instructions.ts";
import type { NewExample } from "./own-examples.ts";
import { labelOf, namesOf, type Row, type Task } from "./task.ts";

/** Sound examples, and the numbers of the lines that are none. */
export interface ReadRows {
  readonly examples: readonly NewExample[];
  readonly wrongLines: readonly number[];
}

/** Reads a file of labelled rows: JSON lines where its first character is a brace, otherwise CSV. */
export function readRows(text: string, task: Task): ReadRows {
  const isJson = text.trimStart().startsWith("{");
  const records = isJson ? jsonLines(text) : csvRecords(text);
  const examples: NewExample[] = [];
  const wrongLines: number[] = [];
  for (const [line, record] of records) {
    const example = record && exampleOf(record, task);
    if (example) examples.push(example);
    else wrongLines.push(line);
  }
  return { examples, wrongLines };
}

function exampleOf(record: Readonly<Record<string, unknown>>, task: Task): NewExample | null {
  const row: Record<string, string> = {};
  for (const field of task.fields) {
    const value = valueOf(record, namesOf(task, field));
    if (typeof value !== "string" || !value.trim()) return null;
    row[field] = value;
  }
  const label = labelOf(task, String(valueOf(record, (task.label ?? "label").split("|")) ?? ""));
  if (label < 0) return null;
  const splits: Readonly<Record<string, number>> = SPLIT;
  const split = splits[String(record["split"] ?? "")];
  return split === undefined ? { row, label } : { row, label, split };
}

function valueOf(record: Readonly<Record<string, unknown>>, names: readonly string[]): unknown {
  return record[names.find((name) => name in record) ?? ""];
}

type Records = [number, Record<string, unknown> | null][];

function jsonLines(text: string): Records {
  return text.split("\n").flatMap((line, at): Records => {
    if (!line.trim()) return [];
    try {
      const value: unknown = JSON.parse(line);
      const isRecord = typeof value === "object" && value !== null;
      return [[at + 1, isRecord ? (value as Record<string, unknown>) : null]];
    } catch {
      return [[at + 1, null]];
    }
  });
}

/** Splits CSV with a line of names; fields may be in quotes, in which two quotes are one. */
function csvRecords(text: string): Records {
  const field = /(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|$)/gy;
  const lines: [number, string[]][] = [];
  let [cells, line, start]: [string[], number, number] = [[], 1, 1];
  for (let match = field.exec(text); match; match = field.exec(text)) {
    const [whole, quoted, plain, end] = match;
    cells.push(quoted === undefined ? (plain ?? "") : quoted.replaceAll('""', '"'));
    line += whole.split("\n").length - 1;
    if (end !== ",") {
      if (cells.some((cell) => cell !== "")) lines.push([start, cells]);
      [cells, start] = [[], line];
      if (field.lastIndex >= text.length) break;
    }
  }
  const [names = []] = lines.slice(0, 1).map(([, first]) => first);
  return lines.slice(1).map(([at, values]) => {
    const record = Object.fromEntries(names.map((name, index) => [name.trim(), values[index]]));
    return [at, values.length === names.length ? record : null];
  });
}

/** Returns pasted lines as examples of one label, one text each. */
export function pastedRows(text: string, field: string, label: number): NewExample[] {
  const lines = text.split("\n").map((line) => line.trim());
  return lines.filter(Boolean).map((line) => ({ row: { [field]: line } as Row, label }));
}
