/**
 * The owner's examples: labelled rows in the browser's store, with the model's outputs for them.
 */

import { sha256, toHex, toUtf8 } from "./bytes.ts";
import { StoppedError } from "./errors.ts";
import type { Numbers } from "./encoder.ts";
import { SPLIT } from "./instructions.ts";
import type { OwnExamples } from "./phone.ts";
import type { Readout, Represented } from "./readout.ts";
import type { Store } from "./store.ts";
import type { Row } from "./task.ts";

const ID_DIGITS = 24;
const READ_AT_ONCE = 64;
const TEST_PERCENT = 20;
const VALIDATION_PERCENT = 10;

/** An example; its id is derived from its fields, so that a repeated text is the same example. */
export interface OwnExample {
  readonly id: string;
  readonly row: Row;
  readonly label: number;
  readonly split: number;
}

/** An example as the page lists it. */
export interface ListedExample extends OwnExample {
  /** Whether the model's tokenizer refuses the example, so that it is left out. */
  readonly isRefused: boolean;
}

/** Counts of examples in each split, of refused examples, and of distinct labels. */
export interface ExampleCounts {
  readonly splits: readonly [number, number, number];
  readonly refused: number;
  readonly labels: number;
}

/** A row with its label; a missing split is derived from the row. */
export interface NewExample {
  readonly row: Row;
  readonly label: number;
  readonly split?: number;
}

/**
 * The model's interface for examples; it is called once per example and returns null for a refused
 * example.
 */
export interface RowEncoder {
  /** Hash of everything except the row that the outputs depend on. */
  readonly program: string;
  readonly readout: Readout;
  represent(rows: readonly Row[], onDone: (count: number) => void): Promise<(Numbers | null)[]>;
}

/** The examples in a store; the model is called when its outputs are first needed. */
export class ExampleBook implements OwnExamples {
  readonly #store: Store;
  readonly #encoder: RowEncoder;
  /** Receives the number of examples that have gone through the model, and the total. */
  onProgress: (done: number, of: number) => void = () => {};
  /** Returns whether the model should process no further examples for now. */
  shouldStop: () => boolean = () => false;
  readonly #kept = new Map<number, Represented>();
  #all: readonly OwnExample[] | null = null;
  #changes = 0;

  constructor(store: Store, encoder: RowEncoder) {
    this.#store = store;
    this.#encoder = encoder;
  }

  /** Adds examples; an existing row gets the new label. */
  async add(examples: readonly NewExample[]): Promise<OwnExample[]> {
    const there = await this.#store.list("example/");
    const known = new Map(there.map(([key, one]) => [(one as OwnExample).id, key]));
    const changes = new Map<string, OwnExample>();
    const newest = there.length ? parseInt(there.at(-1)![0].slice("example/".length), 10) : 0;
    // several examples may be added within one millisecond
    let at = Math.max(Date.now(), newest + 1);
    for (const { row, label, split } of examples) {
      const id = toHex(await sha256(toUtf8(JSON.stringify(row)))).slice(0, ID_DIGITS);
      const key = known.get(id) ?? `example/${String(at++).padStart(15, "0")}-${id}`;
      known.set(id, key);
      changes.set(key, { id, row, label, split: split ?? splitOf(id) });
    }
    await this.#store.write(changes);
    this.#forget();
    return [...changes.values()];
  }

  /** Deletes an example and the model's outputs for it. */
  async remove(id: string): Promise<void> {
    for (const [key, one] of await this.#store.list("example/"))
      if ((one as OwnExample).id === id) await this.#store.erase(key);
    for (const kind of ["numbers", "refused"] as const) await this.#store.erase(this.#keyOf(id, kind));
    this.#forget();
  }

  /** Returns all examples, oldest first. */
  async all(): Promise<ListedExample[]> {
    const refused = await this.#refused();
    return (await this.#read()).map((one) => ({ ...one, isRefused: refused.has(one.id) }));
  }

  async count(split: number): Promise<number> {
    return (await this.#inSplit(split)).length;
  }

  /** Returns the counts of examples. */
  async counts(): Promise<ExampleCounts> {
    const all = await this.all();
    const used = all.filter(({ isRefused }) => !isRefused);
    const count = (split: number): number => used.filter((one) => one.split === split).length;
    const labels = new Set(used.flatMap(({ split, label }) => (split === SPLIT.train ? [label] : [])));
    return {
      splits: [count(SPLIT.train), count(SPLIT.validation), count(SPLIT.test)],
      refused: all.length - used.length,
      labels: labels.size,
    };
  }

  async hash(split: number): Promise<string> {
    const rows = (await this.#inSplit(split)).map(({ id, label }) => `${id} ${label}`);
    return rows.length ? toHex(await sha256(toUtf8(rows.sort().join("\n")))).slice(0, 32) : "";
  }

  /**
   * Returns the model's outputs for a split's examples, without examples that the model's tokenizer refuses.
   *
   * @throws StoppedError if work should stop before all of them are processed.
   */
  async represented(split: number): Promise<Represented> {
    const kept = this.#kept.get(split);
    if (kept) return kept;
    const asked = await this.#inSplit(split);
    const read = await this.#numbersOf(asked);
    const examples = asked.filter((_, at) => read[at]);
    const { labels, features, tokens } = this.#encoder.readout;
    const whole = {
      scores: new Float32Array(examples.length * labels),
      features: new Float32Array(examples.length * features),
      tokens: new Int32Array(examples.length * tokens),
      labels: Int32Array.from(examples, ({ label }) => label),
    };
    read.filter((one) => one !== null).forEach((one, at) => {
      whole.scores.set(one.scores, at * labels);
      whole.features.set(one.features, at * features);
      whole.tokens.set(one.tokens, at * tokens);
    });
    this.#kept.set(split, whole);
    return whole;
  }

  /**
   * Returns the outputs for examples; each batch of outputs is stored before the next batch starts.
   */
  async #numbersOf(examples: readonly OwnExample[]): Promise<(Numbers | null)[]> {
    const keys = examples.map(({ id }) => this.#keyOf(id));
    const found = (await this.#store.readAll(keys)) as (Numbers | null | undefined)[];
    const missing = Array.from(examples.keys()).filter((at) => found[at] === undefined);
    let done = examples.length - missing.length;
    for (let first = 0; first < missing.length; first += READ_AT_ONCE) {
      if (this.shouldStop()) throw new StoppedError("the texts are read later");
      const some = missing.slice(first, first + READ_AT_ONCE);
      const rows = some.map((at) => examples[at]!.row);
      const computed = await this.#encoder.represent(rows, (count) =>
        this.onProgress((done += count), examples.length),
      );
      const changes = some.map((at, which) => {
        const [{ id }, numbers] = [examples[at]!, (found[at] = computed[which]!)];
        return numbers ? ([this.#keyOf(id), numbers] as const) : ([this.#keyOf(id, "refused"), true] as const);
      });
      await this.#store.write(new Map<string, unknown>(changes));
    }
    return found as (Numbers | null)[];
  }

  /** Returns the examples of a split, without examples that the tokenizer is known to refuse. */
  async #inSplit(split: number): Promise<OwnExample[]> {
    return (await this.all()).filter((one) => one.split === split && !one.isRefused);
  }

  async #refused(): Promise<ReadonlySet<string>> {
    const marks = await this.#store.list(this.#keyOf("", "refused"));
    return new Set(marks.map(([key]) => key.slice(-ID_DIGITS)));
  }

  /** Returns the examples in the store; only this object changes them, so they are read once. */
  async #read(): Promise<readonly OwnExample[]> {
    if (this.#all) return this.#all;
    const changes = this.#changes;
    const all = (await this.#store.list("example/")).map(([, one]) => one as OwnExample);
    if (changes === this.#changes) this.#all = all; // otherwise they may be outdated
    return all;
  }

  #forget(): void {
    this.#kept.clear();
    this.#all = null;
    this.#changes++;
  }

  #keyOf(id: string, kind: "numbers" | "refused" = "numbers"): string {
    return `${kind}/${this.#encoder.program.slice(0, 16)}/${id}`;
  }
}

/** Returns a row's split: about 20 % test, 10 % validation, 70 % training; it never changes. */
function splitOf(id: string): number {
  const left = (parseInt(id.slice(0, 8), 16) / 2 ** 32) * 100;
  if (left < TEST_PERCENT) return SPLIT.test;
  return left < TEST_PERCENT + VALIDATION_PERCENT ? SPLIT.validation : SPLIT.train;
}
