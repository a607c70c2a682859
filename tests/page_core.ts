// What the page's integer core makes of cases, in Node and in a browser. A case is a list of a
// function's name and its arguments; the result of an error that the core throws is its class.

import * as answers from "./src/answers.ts";
import { bytesOf, fromHex, sha256, toHex, type Bytes } from "./src/bytes.ts";
import { FrameError, LedgerError, ReplayError } from "./src/errors.ts";
import * as instructions from "./src/instructions.ts";
import { readLayout } from "./src/layout.ts";
import { begin, catchUp, type Session } from "./src/ledger.ts";
import * as philox from "./src/philox.ts";
import * as replay from "./src/replay.ts";
import * as roundDelta from "./src/round-delta.ts";
import { KIND, kindOf, tokenOf } from "./src/wire.ts";

type Distribution = philox.Distribution;
type Case = [keyof typeof functions, ...unknown[]];

const hexadecimal = (value: bigint): string => value.toString(16).padStart(16, "0");
const seedOf = (digits: string): bigint => BigInt(`0x${digits}`);
const seedsOf = (digits: string[]): BigUint64Array<ArrayBuffer> =>
  BigUint64Array.from(digits, seedOf);
const stateOf = (numbers: string[]): replay.State => BigInt64Array.from(numbers, BigInt);

/** A value as the golden files write it. */
function plain(value: unknown, key = ""): unknown {
  if (value instanceof Uint8Array) return toHex(value as Bytes);
  if (typeof value === "bigint") {
    if (key === "root" || value >= 2n ** 53n) return hexadecimal(value);
    return JSON.rawJSON(value.toString());
  }
  if (ArrayBuffer.isView(value)) return Array.from(value as never, (one) => plain(one));
  if (Array.isArray(value)) return value.map((one) => plain(one));
  if (value === null || typeof value !== "object") return value;
  const entries = Object.entries(value).map(([name, one]) => {
    const snake = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    return [snake, plain(one, snake)] as const;
  });
  return Object.fromEntries(entries);
}

/** Numbers in rows of `columns`. */
function nested(numbers: ArrayLike<number>, columns: number): number[][] {
  const all = Array.from(numbers);
  return all.flatMap((_, at) => (at % columns ? [] : [all.slice(at, at + columns)]));
}

const CODECS: Record<number, [(frame: Bytes) => unknown, (fields: never) => Bytes]> = {
  [KIND.hello]: [answers.decodeHello, answers.encodeHello],
  [KIND.train]: [instructions.decodeTrain, instructions.encodeTrain],
  [KIND.evaluate]: [instructions.decodeEvaluate, instructions.encodeEvaluate],
  [KIND.report]: [answers.decodeReport, answers.encodeReport],
  [KIND.reportOfSums]: [answers.decodeReport, answers.encodeReport],
  [KIND.evaluation]: [answers.decodeEvaluation, answers.encodeEvaluation],
  [KIND.refusal]: [answers.decodeRefusal, answers.encodeRefusal],
  [KIND.blobPart]: [answers.decodeBlobPart, answers.encodeBlobPart],
  [KIND.blobReceipt]: [answers.decodeBlobReceipt, answers.encodeBlobReceipt],
  [KIND.roundCost]: [answers.decodeRoundCost, answers.encodeRoundCost],
  [KIND.roundDelta]: [roundDelta.decodeRoundDelta, roundDelta.encodeRoundDelta],
};

/** The fields as Python's dataclasses have them. */
function fieldsOf(decoded: unknown): unknown {
  const fields = { ...(decoded as Record<string, unknown>) };
  if ("gradients" in fields) {
    const { gradients, queries } = decoded as answers.Report;
    if (queries) fields["gradients"] = nested(gradients, queries);
    delete fields["queries"];
  }
  if ("columns" in fields) {
    const { columns, labels } = decoded as answers.Evaluation;
    fields["columns"] = columns.map((one) => ({ ...one, counts: nested(one.counts, labels) }));
    delete fields["labels"];
  }
  if (fields["jointClip"] === 0) delete fields["jointClip"];
  return plain(fields);
}

type GivenEntry =
  | { seeds: string[]; shift: number; coefficients: number[] }
  | { shrink: number }
  | { first: number; values: string[] };

function entryOf(given: GivenEntry): replay.Entry {
  if ("shrink" in given) return { bits: given.shrink };
  if ("values" in given) return { first: given.first, values: stateOf(given.values) };
  const coefficients = Int32Array.from(given.coefficients);
  return { seeds: seedsOf(given.seeds), scalars: { shift: given.shift, coefficients } };
}

const sessionOf = async (session: Session): Promise<unknown> => ({
  round: session.round,
  digest: toHex(session.digest),
  head: toHex(session.head),
  weights: toHex(bytesOf(replay.toFloat32(session.state))),
});

const functions = {
  async direction(seed: string, count: number, distribution: Distribution) {
    const z = philox.direction(seedOf(seed), count, distribution);
    return { sha256: toHex(await sha256(bytesOf(z.slice()))), head: Array.from(z.slice(0, 64)) };
  },
  querySeeds: (root: string, stream: number, steps: number, queries: number) =>
    Array.from(philox.querySeeds(seedOf(root), stream, steps, queries), hexadecimal),
  roundRoot: (seed: string, round: number, track: number) =>
    hexadecimal(philox.roundRoot(seedOf(seed), round, track)),
  poolSeeds: (root: string, indices: number[]) =>
    Array.from(philox.poolSeeds(seedOf(root), Uint32Array.from(indices)), hexadecimal),
  poolIndices: (root: string, stream: number, steps: number, queries: number, size: number) =>
    nested(philox.poolIndices(seedOf(root), stream, steps, queries, size), queries),
  batchOrder: (root: string, client: number, step: number, examples: number) =>
    Array.from(philox.batchOrder(seedOf(root), client, step, examples)),
  /** The fields of a frame, and whether they make the same bytes again. */
  frame(hex: string) {
    const frame = fromHex(hex);
    const codec = CODECS[kindOf(frame)];
    if (!codec) throw new FrameError("unknown");
    const decoded = codec[0](frame);
    return { fields: fieldsOf(decoded), frame: toHex(codec[1](decoded as never)) };
  },
  async instruction(hex: string, client: number) {
    const frame = fromHex(hex);
    const seeds = instructions.seedsOf(instructions.decodeTrain(frame), client);
    return { token: toHex(await tokenOf(frame)), seeds: Array.from(seeds, hexadecimal) };
  },
  /** SHA-256 of the state after entries, of its weights, and its first elements. */
  async replay(start: string[], entries: GivenEntry[], distribution: Distribution) {
    const after = replay.replay(stateOf(start), entries.map(entryOf), distribution);
    const weights = bytesOf(replay.toFloat32(after));
    const head = Array.from(after.slice(0, 64), String);
    return { sha256: toHex(await sha256(bytesOf(after))), weights: toHex(weights), head };
  },
  quantize: (coefficients: number[]) =>
    plain(replay.quantize(Float64Array.from(coefficients))),
  async layout(text: string) {
    const layout = await readLayout(text);
    return { hash: toHex(layout.hash), size: layout.size };
  },
  /** The session at the goal, from one that has replayed `earlier` before. */
  async catchUp(
    text: string,
    runId: string,
    track: number,
    steps: { snapshot: string; tail: string; round: number; digest: string }[],
  ) {
    const layout = await readLayout(text);
    const header = { track, runId: fromHex(runId), layoutHash: layout.hash };
    let session = await begin(header, layout);
    for (const { snapshot, tail, round, digest } of steps) {
      const given = { snapshot: fromHex(snapshot), tail: fromHex(tail) };
      const goal = { round, digest: fromHex(digest) };
      session = await catchUp(session, given, header, layout, goal);
    }
    return sessionOf(session);
  },
};

async function run([name, ...given]: Case): Promise<unknown> {
  try {
    return await (functions[name] as (...given: unknown[]) => unknown)(...given);
  } catch (error) {
    if (error instanceof FrameError) return "FrameError";
    if (error instanceof LedgerError) return "LedgerError";
    if (error instanceof ReplayError) return "ReplayError";
    throw error;
  }
}

/** The results of cases, as JSON. */
export async function resultsOf(cases: Case[]): Promise<string> {
  const results: unknown[] = [];
  for (const one of cases) results.push(await run(one));
  return JSON.stringify(results);
}
