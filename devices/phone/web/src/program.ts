/** The program of a run: its manifest, and a check that this device computes correctly. */

import { areEqual, fromHex, sha256, toHex, type Bytes } from "./bytes.ts";
import { ProgramError } from "./errors.ts";
import { firstOf, GROUP, readLayout, type Layout } from "./layout.ts";
import { direction } from "./philox.ts";
import { perturbed, type Readout, type Represented, type Scorer } from "./readout.ts";
import { digest, zeroState, type State } from "./replay.ts";
import { crossEntropies } from "./softmax.ts";

const MANIFEST_VERSION = 5;
/** Maximum difference of a loss in the self-check, in nats. */
const TOLERANCE = 5e-3;

/** A batch with its expected results; `SelfCheck` in Python documents the fields. */
interface SelfCheck {
  readonly ids: readonly (readonly number[])[] | readonly (readonly (readonly number[])[])[];
  readonly positions: readonly number[];
  readonly labels: readonly number[];
  readonly seeds: readonly bigint[];
  readonly coefficients: readonly bigint[];
  readonly epsilon: number;
  readonly losses: readonly (readonly number[])[];
  readonly digest: string;
}

/** A file of weights, with the path that the graph uses for it. */
export interface WeightsFile {
  readonly path: string;
  readonly sha256: string;
  readonly bytes: number;
}

/** The part of a manifest that a browser needs; `Manifest` in Python documents the fields. */
export interface Manifest {
  readonly version: number;
  readonly runtime: string;
  readonly program_sha256: string;
  readonly model_id: string;
  readonly layout: string;
  readonly layout_hash: string;
  readonly queries: number;
  readonly batch: number;
  readonly sequence: number;
  readonly least_sequence?: number;
  readonly answer_tokens?: number;
  readonly words: readonly string[];
  readonly quantization: string;
  readonly start?: string;
  readonly weights?: readonly WeightsFile[];
  /** Missing for adapters inside the model. */
  readonly readout?: {
    readonly labels: number;
    readonly features: number;
    readonly contrasts: readonly (readonly number[])[];
  };
  readonly check: SelfCheck;
}

/** A manifest with values derived from it. */
export interface Program {
  readonly manifest: Manifest;
  readonly layout: Layout;
  readonly modelId: Bytes;
  readonly readout: Readout;
  readonly start: State;
}

/** Token ids [B × s], or [B × C × s] for candidates, and the last token of each text, [B]. */
export interface Call {
  readonly ids: readonly (readonly (readonly number[])[])[];
  readonly positions: readonly number[];
}

/** Reads a manifest; throws `ProgramError` if it is damaged, or a browser cannot run its program. */
export async function readProgram(text: string): Promise<Program> {
  const manifest = parse(text);
  const layout = await readLayout(manifest.layout);
  const readout = manifest.readout ? readoutOf(manifest.readout) : adaptersOf(manifest);
  const isSound =
    toHex(layout.hash) === manifest.layout_hash &&
    manifest.words.length === readout.labels &&
    (manifest.readout ? isLaidOut(readout, layout) : firstOf(layout, GROUP.readout) < 0);
  if (!isSound) throw new ProgramError("the program's shapes contradict each other");
  const start = await startOf(manifest, layout);
  return { manifest, layout, modelId: fromHex(manifest.model_id), readout, start };
}

function readoutOf({ labels, features, contrasts }: NonNullable<Manifest["readout"]>): Readout {
  return { labels, features, contrasts: Float32Array.from(contrasts.flat()), tokens: 0 };
}

/** Returns a readout description for a program whose model runs in every step. */
function adaptersOf({ words, answer_tokens, sequence }: Manifest): Readout {
  const tokens = (answer_tokens ? words.length : 1) * sequence + 1;
  return { labels: words.length, features: 0, contrasts: new Float32Array(), tokens };
}

/** Returns whether a layout is a readout's, optionally followed by a label bias. */
function isLaidOut({ labels, features, contrasts }: Readout, layout: Layout): boolean {
  const bias = firstOf(layout, GROUP.labelBias);
  const size = (labels - 1) * features;
  return (
    firstOf(layout, GROUP.readout) === 0 &&
    layout.size === (bias < 0 ? size : size + labels) &&
    (bias < 0 || bias === size) &&
    contrasts.length === (labels - 1) * labels
  );
}

function parse(text: string): Manifest {
  let manifest: Manifest;
  try {
    manifest = JSON.parse(withBigIntegers(text), revived) as Manifest;
  } catch (error) {
    throw new ProgramError(`not a manifest: ${(error as Error).message}`);
  }
  if (manifest.version > MANIFEST_VERSION)
    throw new ProgramError("the program is newer than this page; load the page again");
  if (manifest.runtime !== "onnx")
    throw new ProgramError("the program is not for browsers: export it with --runtime onnx");
  return manifest;
}

/** Returns JSON in which the 64-bit integers of seeds and coefficients are strings. */
function withBigIntegers(text: string): string {
  return text.replace(/"(seeds|coefficients)":\s*\[[^\]]*\]/g, (list) =>
    list.replace(/-?\d+/g, '"$&"'),
  );
}

function revived(key: string, value: unknown): unknown {
  if (key !== "seeds" && key !== "coefficients") return value;
  return (value as string[]).map(BigInt);
}

/** Returns the adapter's initial weights: zeros, or the numbers in a safetensors file. */
async function startOf(manifest: Manifest, layout: Layout): Promise<State> {
  const data = Uint8Array.from(atob(manifest.start ?? ""), (one) => one.charCodeAt(0));
  const named = (JSON.parse(layout.text) as { readonly start?: string }).start ?? "";
  if ((data.length ? toHex(await sha256(data)) : "") !== named)
    throw new ProgramError("the program's initial weights do not have the layout's hash");
  if (!data.length) return zeroState(layout.size);
  const length = Number(new DataView(data.buffer).getBigUint64(0, true));
  const head = JSON.parse(new TextDecoder().decode(data.subarray(8, 8 + length))) as {
    readonly start?: { readonly dtype: string; readonly data_offsets: [number, number] };
  };
  const [from, to] = head.start?.data_offsets ?? [0, 0];
  if (head.start?.dtype !== "I64" || to - from !== 8 * layout.size)
    throw new ProgramError("the number of the program's initial weights differs from the layout's");
  return new BigInt64Array(data.slice(8 + length + from, 8 + length + to).buffer);
}

/** Returns the number of tokens in a call, given the tokens of the longest example. */
export function callLength(manifest: Manifest, longest: number): number {
  return manifest.least_sequence ? Math.max(longest, manifest.least_sequence) : manifest.sequence;
}

/**
 * Returns the largest difference of a loss in the self-check, in nats.
 *
 * @param represent function that returns the outputs for a call's rows.
 * @param scorer function that returns scores under weights.
 * @throws ProgramError if replay is not exact, or a loss differs too much.
 */
export async function selfCheck(
  { manifest, layout, readout }: Program,
  represent: (call: Call) => Promise<Omit<Represented, "labels">>,
  scorer: Scorer,
): Promise<number> {
  const { check } = manifest;
  const ids = check.ids.map((row) => (Array.isArray(row[0]) ? row : [row])) as number[][][];
  const numbers = await represent({ ids, positions: check.positions });
  const examples = { ...numbers, labels: Int32Array.from(check.labels) };
  const rows = Array.from(check.labels.keys());
  const zeros = new Float32Array(layout.size);
  const directions = check.seeds.map((seed) =>
    direction(seed, layout.size, layout.distribution),
  );
  const weights = [1, -1].flatMap((sign) =>
    directions.map((z) => perturbed(zeros, z, check.epsilon, sign)),
  );
  let worst = 0;
  (await scorer(weights, examples, rows)).forEach((scores, at) => {
    const losses = crossEntropies(scores, examples.labels, readout.labels);
    losses.forEach((loss, row) => {
      const difference = Math.abs(loss - check.losses[at]![row]!);
      if (!(difference <= worst)) worst = difference;
    });
  });
  const state = zeroState(layout.size).map((_, at) =>
    check.coefficients.reduce((sum, one, each) => sum + one * BigInt(directions[each]![at]!), 0n),
  );
  if (!areEqual(await digest(layout.hash, state), fromHex(check.digest)))
    throw new ProgramError("replay is not exact in this browser, so it cannot join a run");
  if (!(worst <= TOLERANCE))
    throw new ProgramError(`the model's losses differ by ${worst} from their expected values`);
  return worst;
}
