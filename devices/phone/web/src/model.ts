/** The model of a program: fetched, loaded and checked when it is needed first. */

import { fetchModel, sizeOf } from "./download.ts";
import { Encoder, type Numbers } from "./encoder.ts";
import { enginesOf, OnEngines, type Engine, type Graphics } from "./engines.ts";
import { selfCheck, type Program } from "./program.ts";
import { readoutScorer, type Scorer } from "./readout.ts";
import type { ProgramIndex, Row } from "./task.ts";
import { RowTokenizer } from "./tokens.ts";

type Fetched = Awaited<ReturnType<typeof fetchModel>>;

interface Loaded {
  readonly encoder: Encoder;
  readonly tokenizer: RowTokenizer;
}

/** The model; one call at a time. */
export class Model {
  readonly #index: ProgramIndex;
  readonly #program: Program;
  readonly #onBytes: (done: number, of: number) => void;
  readonly #loaded: OnEngines<Fetched, Loaded>;
  /** Scores of examples: of a readout by its arithmetic alone, otherwise by the model. */
  readonly scorer: Scorer;

  /** @param onBytes is told how many bytes of how many have come. */
  constructor(index: ProgramIndex, program: Program, onBytes: (done: number, of: number) => void) {
    this.#index = index;
    this.#program = program;
    this.#onBytes = onBytes;
    const { gpu } = navigator as { readonly gpu?: Graphics };
    this.#loaded = new OnEngines(
      () => enginesOf(gpu),
      () => this.#fetch(),
      (fetched, engine) => this.#load(fetched, engine),
    );
    this.scorer = program.readout.tokens
      ? (...given) => this.#loaded.use(({ encoder }) => encoder.scores(...given))
      : readoutScorer(program.readout);
  }

  /** Returns the numbers of rows; `onDone` is told of each call's. */
  represent(rows: readonly Row[], onDone: (count: number) => void): Promise<Numbers[]> {
    const { batch } = this.#program.manifest;
    return this.#loaded.use(async ({ encoder, tokenizer }) => {
      const tokens = rows.map((row) => tokenizer.tokens(row));
      const lengths = tokens.map(({ sequences }) => sequences[0]!.length);
      const order = Array.from(rows.keys()).sort((a, b) => lengths[a]! - lengths[b]! || a - b);
      const numbers = new Array<Numbers>(rows.length);
      for (let first = 0; first < order.length; first += batch) {
        const some = order.slice(first, first + batch);
        const found = await encoder.representRows(some.map((row) => tokens[row]!));
        some.forEach((row, at) => (numbers[row] = found[at]!));
        onDone(some.length);
      }
      return numbers;
    });
  }

  #fetch(): Promise<Fetched> {
    const of = sizeOf(this.#index);
    let done = 0;
    return fetchModel(this.#index, (count) => this.#onBytes((done += count), of));
  }

  async #load({ texts, ...files }: Fetched, engine: Engine): Promise<Loaded> {
    const tokenizer = new RowTokenizer(this.#index, texts);
    const encoder = await Encoder.load(files, this.#program, engine);
    const ofModel: Scorer = (...given) => encoder.scores(...given); // not kept before the check
    const { readout } = this.#program;
    const scorer = readout.tokens ? ofModel : readoutScorer(readout);
    await selfCheck(this.#program, (call) => encoder.represent(call), scorer);
    return { encoder, tokenizer };
  }
}
