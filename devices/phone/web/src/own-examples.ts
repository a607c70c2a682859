/** The owner's examples: labelled rows in the browser's store, and what the model makes of them. */

import { sha256, toHex, toUtf8 } from "./bytes.ts";
import type { Numbers } from "./encoder.ts";
import { SPLIT } from "./instructions.ts";
import type { OwnExamples } from "./phone.ts";
import type { Readout, Represented } from "./readout.ts";
import type { Store } from "./store.ts";
import type { Row } from "./task.ts";

const ID_DIGITS = 24;
const TEST_PERCENT = 20;
const VALIDATION_PERCENT = 10;

/** An example; its id follows from its fields, so that a text that comes again is the same one. */
export interface OwnExample {
  readonly id: string;
  readonly row: Row;
  readonly label: number;
  readonly split: number;
}

/** A row with its label; a split that is not given follows from the row. */
export interface NewExample {
  readonly row: Row;
  readonly label: number;
  readonly split?: number;
}

/** The model's part in examples; it is asked once for each. */
export interface RowEncoder {
  readonly program: string;
  readonly readout: Readout;
  represent(rows: readonly Row[], onDone: (count: number) => void): Promise<Numbers[]>;
}

/** The examples in a store; the model is asked when their numbers are needed first. */
export class ExampleBook implements OwnExamples {
  readonly #store: Store;
  readonly #encoder: RowEncoder;
  /** What is told how many of how many examples have gone through the model. */
  onProgress: (done: number, of: number) => void = () => {};
  readonly #kept = new Map<number, Represented>();

  constructor(store: Store, encoder: RowEncoder) {
    this.#store = store;
    this.#encoder = encoder;
  }

  /** Adds examples; one whose row is there already gets the new label. */
  async add(examples: readonly NewExample[]): Promise<OwnExample[]> {
    const there = await this.#store.list("example/");
    const known = new Map(there.map(([key, one]) => [(one as OwnExample).id, key]));
    const changes = new Map<string, OwnExample>();
    const newest = there.length ? parseInt(there.at(-1)![0].slice("example/".length), 10) : 0;
    let at = Math.max(Date.now(), newest + 1); // many may have been added in one millisecond
    for (const { row, label, split } of examples) {
      const id = toHex(await sha256(toUtf8(JSON.stringify(row)))).slice(0, ID_DIGITS);
      const key = known.get(id) ?? `example/${String(at++).padStart(15, "0")}-${id}`;
      known.set(id, key);
      changes.set(key, { id, row, label, split: split ?? splitOf(id) });
    }
    await this.#store.write(changes);
    this.#kept.clear();
    return [...changes.values()];
  }

  /** Deletes an example, and what the model made of it. */
  async remove(id: string): Promise<void> {
    for (const [key, one] of await this.#store.list("example/"))
      if ((one as OwnExample).id === id) await this.#store.erase(key);
    await this.#store.erase(this.#keyOf(id));
    this.#kept.clear();
  }

  /** Returns all examples, the oldest first. */
  async all(): Promise<OwnExample[]> {
    return (await this.#store.list("example/")).map(([, one]) => one as OwnExample);
  }

  async count(split: number): Promise<number> {
    return (await this.#inSplit(split)).length;
  }

  async hash(split: number): Promise<string> {
    const rows = (await this.#inSplit(split)).map(({ id, label }) => `${id} ${label}`);
    return rows.length ? toHex(await sha256(toUtf8(rows.sort().join("\n")))).slice(0, 32) : "";
  }

  async represented(split: number): Promise<Represented> {
    const kept = this.#kept.get(split);
    if (kept) return kept;
    const examples = await this.#inSplit(split);
    const { labels, features, tokens } = this.#encoder.readout;
    const numbers = await this.#numbersOf(examples);
    const whole = {
      scores: new Float32Array(examples.length * labels),
      features: new Float32Array(examples.length * features),
      tokens: new Int32Array(examples.length * tokens),
      labels: Int32Array.from(examples, ({ label }) => label),
    };
    numbers.forEach((one, at) => {
      whole.scores.set(one.scores, at * labels);
      whole.features.set(one.features, at * features);
      whole.tokens.set(one.tokens, at * tokens);
    });
    this.#kept.set(split, whole);
    return whole;
  }

  async #numbersOf(examples: readonly OwnExample[]): Promise<Numbers[]> {
    const read = await Promise.all(
      examples.map(({ id }) => this.#store.read(this.#keyOf(id)) as Promise<Numbers | undefined>),
    );
    const missing = examples.filter((_, at) => read[at] === undefined);
    if (!missing.length) return read as Numbers[];
    const rows = missing.map(({ row }) => row);
    let done = examples.length - missing.length;
    const computed = await this.#encoder.represent(rows, (count) =>
      this.onProgress((done += count), examples.length),
    );
    const keys = missing.map(({ id }, at) => [this.#keyOf(id), computed[at]!] as const);
    await this.#store.write(new Map(keys));
    let next = 0;
    return read.map((numbers) => numbers ?? computed[next++]!);
  }

  async #inSplit(split: number): Promise<OwnExample[]> {
    return (await this.all()).filter((one) => one.split === split);
  }

  #keyOf(id: string): string {
    return `numbers/${this.#encoder.program.slice(0, 16)}/${id}`;
  }
}

/** Of 100 rows about 20 are test, 10 validation and 70 training examples; none ever moves. */
function splitOf(id: string): number {
  const left = (parseInt(id.slice(0, 8), 16) / 2 ** 32) * 100;
  if (left < TEST_PERCENT) return SPLIT.test;
  return left < TEST_PERCENT + VALIDATION_PERCENT ? SPLIT.validation : SPLIT.train;
}
