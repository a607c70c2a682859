/** The model of a program, which is fetched, loaded and checked when it is first needed. */

import { fetchModel, fetchTokenizer, sizeOf, sizeOfTokenizer } from "./download.ts";
import { Encoder, type ModelFiles, type Numbers } from "./encoder.ts";
import { enginesOf, OnEngines, type Engine, type Graphics } from "./engines.ts";
import { PlainError } from "./errors.ts";
import { selfCheck, type Program } from "./program.ts";
import { readoutScorer, type Scorer } from "./readout.ts";
import type { ProgramIndex, Row } from "./task.ts";
import { RowTokenizer, type Tokens } from "./tokens.ts";

/** The model, for one call at a time. */
export class Model {
  readonly #index: ProgramIndex;
  readonly #program: Program;
  readonly #onBytes: (done: number, of: number) => void;
  readonly #encoder: OnEngines<ModelFiles, Encoder>;
  #tokenizer: RowTokenizer | null = null;
  /** Scorer of examples: arithmetic alone for a readout, otherwise the model. */
  readonly scorer: Scorer;

  /** @param onBytes function that receives the number of received bytes and the total. */
  constructor(index: ProgramIndex, program: Program, onBytes: (done: number, of: number) => void) {
    this.#index = index;
    this.#program = program;
    this.#onBytes = onBytes;
    const { gpu } = navigator as { readonly gpu?: Graphics };
    this.#encoder = new OnEngines(
      () => enginesOf(gpu),
      () => fetchModel(index, this.#counting(sizeOfTokenizer(index))),
      (files, engine) => this.#load(files, engine),
    );
    this.scorer = program.readout.tokens
      ? (...given) => this.#encoder.use((encoder) => encoder.scores(...given))
      : readoutScorer(program.readout);
  }

  /**
   * Returns the outputs for rows, null for rows that the tokenizer refuses; calls `onDone` per
   * call.
   */
  async represent(
    rows: readonly Row[],
    onDone: (count: number) => void,
  ): Promise<(Numbers | null)[]> {
    const tokenizer = (this.#tokenizer ??= await this.#loadTokenizer());
    const tokens = rows.map((row) => tokensOf(tokenizer, row));
    const lengths = tokens.map((one) => one?.sequences[0]!.length ?? 0);
    const read = Array.from(rows.keys()).filter((row) => tokens[row]);
    const order = read.sort((a, b) => lengths[a]! - lengths[b]! || a - b);
    const numbers = new Array<Numbers | null>(rows.length).fill(null);
    if (!order.length) return numbers;
    const { batch } = this.#program.manifest;
    return this.#encoder.use(async (encoder) => {
      for (let first = 0; first < order.length; first += batch) {
        const some = order.slice(first, first + batch);
        const found = await encoder.representRows(some.map((row) => tokens[row]!));
        some.forEach((row, at) => (numbers[row] = found[at]!));
        onDone(some.length);
      }
      return numbers;
    });
  }

  async #loadTokenizer(): Promise<RowTokenizer> {
    return new RowTokenizer(this.#index, await fetchTokenizer(this.#index, this.#counting(0)));
  }

  async #load(files: ModelFiles, engine: Engine): Promise<Encoder> {
    const encoder = await Encoder.load(files, this.#program, engine);
    const ofModel: Scorer = (...given) => encoder.scores(...given); // not stored before the check
    const { readout } = this.#program;
    const scorer = readout.tokens ? ofModel : readoutScorer(readout);
    await selfCheck(this.#program, (call) => encoder.represent(call), scorer);
    return encoder;
  }

  /** Returns a function that reports received bytes in addition to those already there. */
  #counting(there: number): (count: number) => void {
    const of = sizeOf(this.#index);
    let done = there;
    return (count) => this.#onBytes((done += count), of);
  }
}

/**
 * Returns the tokens of a row; null if the tokenizer refuses it, which is no failure of the engine.
 */
function tokensOf(tokenizer: RowTokenizer, row: Row): Tokens | null {
  try {
    return tokenizer.tokens(row);
  } catch (error) {
    if (error instanceof PlainError) return null;
    throw error;
  }
}
