/** The model in ONNX Runtime: scores of rows, and the inputs of a readout. */

import { fromHex, type Bytes } from "./bytes.ts";
import type { Engine } from "./engines.ts";
import { ProgramError } from "./errors.ts";
import type { InferenceSession, Tensor } from "./library/onnxruntime.mjs";
import { callLength, type Call, type Program } from "./program.ts";
import type { Represented } from "./readout.ts";
import type { Tokens } from "./tokens.ts";

const MOST_THREADS = 4;
/**
 * Time slice in milliseconds, because WebAssembly computes without a pause and blocks the worker.
 */
const MILLISECONDS_OF_A_TURN = 50;

/** Base model scores, features and tokens of some rows, concatenated. */
export type Numbers = Omit<Represented, "labels">;

type Outputs = Readonly<Record<string, Tensor>>;
type Runtime = Awaited<ReturnType<Engine["load"]>>;

/** The files of a model: its graph, and its weights by the paths used in the graph. */
export interface ModelFiles {
  readonly graph: Bytes;
  readonly weights: readonly { readonly path: string; readonly data: Bytes }[];
}

/** A loaded model, for one call at a time. */
export class Encoder {
  readonly #ort: Runtime;
  readonly #session: InferenceSession;
  readonly #program: Program;
  #nextTurn = 0;

  private constructor(ort: Runtime, session: InferenceSession, program: Program) {
    this.#ort = ort;
    this.#session = session;
    this.#program = program;
  }

  /** Loads a model; throws `ProgramError` if the engine is missing or refuses it. */
  static async load(files: ModelFiles, program: Program, engine: Engine): Promise<Encoder> {
    try {
      const ort = await engine.load();
      ort.env.wasm.wasmPaths = new URL("./library/", import.meta.url).href;
      ort.env.wasm.numThreads = crossOriginIsolated
        ? Math.min(MOST_THREADS, navigator.hardwareConcurrency)
        : 1;
      ort.env.logLevel = "error";
      const session = await ort.InferenceSession.create(files.graph, {
        executionProviders: [engine.name],
        externalData: files.weights.map(({ path, data }) => ({ path, data })),
      });
      return new Encoder(ort, session, program);
    } catch (error) {
      throw new ProgramError(`the model cannot be loaded: ${String(error)}`);
    }
  }

  /** Returns the outputs of a call with exactly the program's number of rows. */
  async represent({ ids, positions }: Call): Promise<Numbers> {
    const { readout, layout } = this.#program;
    const count = ids.length;
    if (!readout.tokens) {
      const outputs = await this.#run(this.#inputs(ids.flat(2), positions));
      const [scores, features] = [read(outputs, "scores"), read(outputs, "features")];
      return { scores, features, tokens: new Int32Array() };
    }
    const rows = ids.map((one, at) => [...one.flat(), positions[at]!]);
    const tokens = Int32Array.from(rows.flat());
    const known = { scores: new Float32Array(), features: new Float32Array(), tokens };
    const examples = { ...known, labels: new Int32Array(count) };
    const base = [new Float32Array(layout.size)];
    const [scores] = await this.scores(base, examples, Array.from(ids.keys()));
    return { ...known, scores: scores! };
  }

  /** Returns the outputs for at most the number of rows of a call. */
  async representRows(rows: readonly Tokens[]): Promise<Numbers[]> {
    const { manifest, readout } = this.#program;
    const longest = Math.max(...rows.map(({ sequences }) => sequences[0]!.length));
    const length = callLength(manifest, longest);
    const filled = Array.from({ length: manifest.batch }, (_, at) => rows[at % rows.length]!);
    const padding = this.#hasCandidates ? -1 : 0;
    const ids = filled.map(({ sequences }) =>
      sequences.map((one) => [...one, ...new Array<number>(length - one.length).fill(padding)]),
    );
    const { scores, features, tokens } = await this.represent({
      ids,
      positions: filled.map(({ position }) => position),
    });
    return rows.map((_, row) => ({
      scores: scores.slice(row * readout.labels, (row + 1) * readout.labels),
      features: features.slice(row * readout.features, (row + 1) * readout.features),
      tokens: tokens.slice(row * readout.tokens, (row + 1) * readout.tokens),
    }));
  }

  /** Returns the scores of examples under weights of adapters inside the model; see `Scorer`. */
  async scores(
    weights: readonly Float32Array[],
    examples: Represented,
    rows: ArrayLike<number>,
  ): Promise<Float32Array<ArrayBuffer>[]> {
    const { manifest, readout, layout } = this.#program;
    const { batch, queries } = manifest;
    const [{ labels, tokens }, adapters] = [readout, 2 * queries];
    const found = weights.map(() => new Float32Array(rows.length * labels));
    for (let first = 0; first < rows.length; first += batch) {
      const some = Array.from({ length: batch }, (_, at) => rows[(first + at) % rows.length]!);
      const own = some.map((row) => examples.tokens.subarray(row * tokens, (row + 1) * tokens));
      const ids = own.flatMap((one) => Array.from(one.subarray(0, -1)));
      const inputs = this.#inputs(ids, own.map((one) => one.at(-1)!));
      for (let from = 0; from < weights.length; from += adapters) {
        const given = new Float32Array(adapters * layout.size);
        const tried = weights.slice(from, from + adapters);
        tried.forEach((one, at) => given.set(one, at * layout.size));
        const tensor = new this.#ort.Tensor("float32", given, [adapters, layout.size]);
        const scores = read(await this.#run({ weights: tensor, ...inputs }), "scores");
        const kept = Math.min(batch, rows.length - first) * labels;
        tried.forEach((_, at) => {
          const start = at * batch * labels;
          found[from + at]!.set(scores.subarray(start, start + kept), first * labels);
        });
      }
    }
    return found;
  }

  /** Computes outputs, and sometimes yields to pending work, such as a question from the page. */
  async #run(inputs: Readonly<Record<string, Tensor>>): Promise<Outputs> {
    const outputs = await this.#session.run(inputs);
    if (performance.now() > this.#nextTurn) {
      await new Promise((resolve) => setTimeout(resolve));
      this.#nextTurn = performance.now() + MILLISECONDS_OF_A_TURN;
    }
    return outputs;
  }

  get #hasCandidates(): boolean {
    return (this.#program.manifest.answer_tokens ?? 0) > 0;
  }

  #inputs(
    ids: readonly number[],
    positions: readonly number[],
  ): Readonly<Record<"ids" | "positions", Tensor>> {
    const { words } = this.#program.manifest;
    const count = positions.length;
    const length = ids.length / count / (this.#hasCandidates ? words.length : 1);
    const shape = this.#hasCandidates ? [count, words.length, length] : [count, length];
    return {
      ids: new this.#ort.Tensor("int64", BigInt64Array.from(ids, BigInt), shape),
      positions: new this.#ort.Tensor("int64", BigInt64Array.from(positions, BigInt), [count]),
    };
  }
}

function read(outputs: Outputs, name: string): Float32Array<ArrayBuffer> {
  return Float32Array.from(outputs[name]!.data as Float32Array);
}

/** Returns whether bytes have the given SHA-256, in hexadecimal. */
export async function hasHash(bytes: Bytes, sha256: string): Promise<boolean> {
  const found = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return fromHex(sha256).every((byte, at) => byte === found[at]);
}
