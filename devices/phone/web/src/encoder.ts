/** The model: a row's scores and features, by ONNX Runtime in WebAssembly. */

import { fromHex, type Bytes } from "./bytes.ts";
import { ProgramError } from "./errors.ts";
import * as ort from "./library/onnxruntime.mjs";
import { callLength, type Call, type Manifest } from "./program.ts";
import type { Represented } from "./readout.ts";
import type { Tokens } from "./tokens.ts";

const MOST_THREADS = 4;

/** Scores of the base model and features of some rows, one after the other. */
export type Numbers = Omit<Represented, "labels">;

/** The files of a model: its graph, and weights by the paths that the graph names. */
export interface ModelFiles {
  readonly graph: Bytes;
  readonly weights: readonly { readonly path: string; readonly data: Bytes }[];
}

/** A loaded model; one call at a time. */
export class Encoder {
  readonly #session: ort.InferenceSession;
  readonly #manifest: Manifest;

  private constructor(session: ort.InferenceSession, manifest: Manifest) {
    this.#session = session;
    this.#manifest = manifest;
  }

  /** Loads a model; throws `ProgramError` if ONNX Runtime refuses it. */
  static async load(files: ModelFiles, manifest: Manifest): Promise<Encoder> {
    ort.env.wasm.wasmPaths = new URL("./library/", import.meta.url).href;
    ort.env.wasm.numThreads = crossOriginIsolated
      ? Math.min(MOST_THREADS, navigator.hardwareConcurrency)
      : 1;
    ort.env.logLevel = "error";
    const weights = files.weights.map(({ path, data }) => ({ path, data }));
    try {
      const session = await ort.InferenceSession.create(files.graph, {
        executionProviders: ["wasm"],
        externalData: weights,
      });
      return new Encoder(session, manifest);
    } catch (error) {
      throw new ProgramError(`the model cannot be loaded: ${String(error)}`);
    }
  }

  /** Returns the numbers of a call of exactly as many rows as the program has. */
  async represent({ ids, positions }: Call): Promise<Numbers> {
    const [candidates, length] = [ids[0]!.length, ids[0]![0]!.length];
    const tokens = BigInt64Array.from(ids.flat(2), BigInt);
    const hasCandidates = (this.#manifest.answer_tokens ?? 0) > 0;
    const shape = hasCandidates ? [ids.length, candidates, length] : [ids.length, length];
    const outputs = await this.#session.run({
      ids: new ort.Tensor("int64", tokens, shape),
      positions: new ort.Tensor("int64", BigInt64Array.from(positions, BigInt), [ids.length]),
    });
    const read = (name: string): Float32Array<ArrayBuffer> =>
      Float32Array.from(outputs[name]!.data as Float32Array);
    return { scores: read("scores"), features: read("features") };
  }

  /** Returns the numbers of at most as many rows as a call has. */
  async representRows(rows: readonly Tokens[]): Promise<Numbers[]> {
    const { batch, readout } = this.#manifest;
    const longest = Math.max(...rows.map(({ sequences }) => sequences[0]!.length));
    const length = callLength(this.#manifest, longest);
    const filled = Array.from({ length: batch }, (_, at) => rows[at % rows.length]!);
    const padding = (this.#manifest.answer_tokens ?? 0) > 0 ? -1 : 0;
    const ids = filled.map(({ sequences }) =>
      sequences.map((one) => [...one, ...new Array<number>(length - one.length).fill(padding)]),
    );
    const { scores, features } = await this.represent({
      ids,
      positions: filled.map(({ position }) => position),
    });
    return rows.map((_, row) => ({
      scores: scores.slice(row * readout.labels, (row + 1) * readout.labels),
      features: features.slice(row * readout.features, (row + 1) * readout.features),
    }));
  }
}

/** Returns whether bytes have a SHA-256 in hexadecimal. */
export async function hasHash(bytes: Bytes, sha256: string): Promise<boolean> {
  const found = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return fromHex(sha256).every((byte, at) => byte === found[at]);
}
