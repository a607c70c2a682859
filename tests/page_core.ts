// What the page's integer core makes of cases, in Node and in a browser. A case is a list of a
// function's name and its arguments; the result of an error that the core throws is its class.

import * as answers from "./src/answers.ts";
import { bytesOf, fromHex, sha256, toHex, toUtf8, type Bytes } from "./src/bytes.ts";
import { PhoneError } from "./src/errors.ts";
import { epsilonOf } from "./src/accountant.ts";
import * as instructions from "./src/instructions.ts";
import { readLayout } from "./src/layout.ts";
import { begin, catchUp, mostMessageBytes, mostRecordBytes, type Session } from "./src/ledger.ts";
import * as frames from "./src/masking-frames.ts";
import * as keys from "./src/masking-keys.ts";
import { bucketOf, neighbourhoodOf } from "./src/neighbours.ts";
import { discreteGaussian, randomBelow, type Below } from "./src/noise.ts";
import * as philox from "./src/philox.ts";
import { readPrivacy } from "./src/privacy-terms.ts";
import { profiledLoss } from "./src/profiled-loss.ts";
import * as replay from "./src/replay.ts";
import * as roundDelta from "./src/round-delta.ts";
import { splitSecret } from "./src/secret-shares.ts";
import { SettingValues } from "./src/setting-values.ts";
import * as vectors from "./src/vector.ts";
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
  if (value instanceof Map) return plain(Object.fromEntries(value));
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
  [KIND.vectorReport]: [vectors.decodeVectorReport, vectors.encodeVectorReport],
  [KIND.noisedVectorReport]: [vectors.decodeVectorReport, vectors.encodeVectorReport],
  [KIND.maskedReport]: [vectors.decodeVectorReport, vectors.encodeVectorReport],
  [KIND.keyRequest]: [frames.decodeKeyRequest, frames.encodeKeyRequest],
  [KIND.maskingKeys]: [frames.decodeMaskingKeys, frames.encodeMaskingKeys],
  [KIND.keyList]: [frames.decodeKeyList, frames.encodeKeyList],
  [KIND.bucketKeyList]: [frames.decodeBucketKeyList, frames.encodeBucketKeyList],
  [KIND.sealedShares]: [frames.decodeSealedShares, frames.encodeSealedShares],
  [KIND.survivorList]: [frames.decodeSurvivorList, frames.encodeSurvivorList],
  [KIND.survivorSignature]: [frames.decodeSurvivorSignature, frames.encodeSurvivorSignature],
  [KIND.signatureList]: [frames.decodeSignatureList, frames.encodeSignatureList],
  [KIND.revealedShares]: [frames.decodeRevealedShares, frames.encodeRevealedShares],
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
  for (const later of ["jointClip", "isProfiled"]) if (!fields[later]) delete fields[later];
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

interface GivenMasks {
  readonly token: string;
  readonly nonce: string;
  readonly client: number;
  readonly clients: Record<string, string>[];
  readonly pairs: { readonly neighbour: number; readonly content: string }[];
  readonly vector: string[];
  readonly coefficients: string[];
  readonly points: number[];
}

/** A private key of a secret, little-endian, of which JWK wants the other order and the point. */
async function keyOf(secret: string, point: string): Promise<CryptoKey> {
  const [d, x, y] = [fromHex(secret).reverse(), fromHex(point).slice(1, 33), fromHex(point).slice(33)]
    .map((bytes) => btoa(String.fromCharCode(...bytes)))
    .map((text) => text.replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, ""));
  const jwk = { kty: "EC", crv: "P-256", d: d!, x: x!, y: y! };
  const curve = { name: "ECDH", namedCurve: "P-256" };
  return crypto.subtle.importKey("jwk", jwk, curve, false, ["deriveBits"]);
}

/** Numbers that a test draws alike in Python. */
function knownBelow(): Below {
  let state = 1n;
  return (limit) => {
    state = (state * 6364136223846793005n + 1442695040888963407n) % 2n ** 512n;
    return (state >> 64n) % limit;
  };
}

const functions = {
  async direction(seed: string, count: number, distribution: Distribution) {
    const z = philox.direction(seedOf(seed), count, distribution);
    return { sha256: toHex(await sha256(bytesOf(z.slice()))), head: Array.from(z.slice(0, 64)) };
  },
  querySeeds: (root: string, stream: number, steps: number, queries: number) =>
    Array.from(philox.querySeeds(seedOf(root), stream, steps, queries), hexadecimal),
  roundRoot: (seed: string, round: number, track: number) =>
    hexadecimal(philox.roundRoot(seedOf(seed), round, track)),
  orthogonalRoot: (seed: string, round: number, queries: number, track: number) =>
    hexadecimal(philox.orthogonalRoot(seedOf(seed), round, queries, track)),
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
  profiledLoss: (scores: number[], labels: number[], width: number) =>
    profiledLoss(Float32Array.from(scores), Int32Array.from(labels), width),
  quantize: (coefficients: number[]) =>
    plain(replay.quantize(Float64Array.from(coefficients))),
  async layout(text: string) {
    const layout = await readLayout(text);
    return { hash: toHex(layout.hash), size: layout.size };
  },
  mostBytes: (elements: number) => [mostRecordBytes(elements), mostMessageBytes(elements)],
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
  /** What follows from the secrets of the golden file of masks. */
  async masks(given: GivenMasks) {
    const token = fromHex(given.token);
    const own = new Map(given.clients.map((one) => [Number(one["client"]), one]));
    const me = own.get(given.client)!;
    const digest = await keys.digestOfClients(token, [...own.keys()]);
    const sealing = await keyOf(me["sealing_secret"]!, me["sealing_key"]!);
    const masking = await keyOf(me["mask_secret"]!, me["mask_key"]!);
    const [pairs, pairKeys] = [[] as unknown[], new Map<number, Bytes>()];
    for (const { neighbour, content } of given.pairs) {
      const other = own.get(neighbour)!;
      const pair = keys.pairOf(digest, given.client, neighbour);
      const forShares = await keys.agree(sealing, fromHex(other["sealing_key"]!), "shares", pair);
      const forMasks = await keys.agree(masking, fromHex(other["mask_key"]!), "mask", pair);
      const ends = [given.client, neighbour, token] as const;
      const sealed = await keys.seal(forShares, fromHex(content), ...ends, fromHex(given.nonce));
      const opened = await keys.unseal(forShares, sealed, ...ends);
      const forged = await keys.unseal(forShares, sealed, neighbour, given.client, token);
      pairKeys.set(neighbour, forMasks);
      pairs.push({
        neighbour,
        key_for_shares: toHex(forShares),
        key_for_masks: toHex(forMasks),
        mask: Array.from(await keys.maskStream(forMasks, given.vector.length), String),
        content: forged ?? toHex(opened!),
        sealed: toHex(sealed),
      });
    }
    const seed = fromHex(me["mask_seed"]!);
    const vector = stateOf(given.vector);
    const masked = await keys.maskVector(vector, given.client, seed, pairKeys);
    const drawn = given.coefficients.map(BigInt);
    const seeds = given.clients.map((one) => fromHex(one["mask_seed"]!));
    const fresh = await keys.makeRoundKey();
    const again = await keyOf(toHex(fresh.secret), toHex(fresh.point));
    const other = fromHex(me["mask_key"]!);
    const agreed = [again, fresh.key].map((key) => keys.agree(key, other, "mask", token));
    const [one, same] = (await Promise.all(agreed)).map(toHex);
    return {
      clients_digest: toHex(digest),
      commitments: (await Promise.all(seeds.map(keys.commitTo))).map(toHex),
      pairs,
      masked: Array.from(masked, String),
      shares: splitSecret(seed, given.points, 3, () => drawn.shift()!).map(toHex),
      isSame: one === same,
    };
  },
  neighbourhood: (client: number, token: string, clients: number[]) =>
    neighbourhoodOf(client, fromHex(token), clients),
  bucket: (client: number, token: string, clients: number[], digests: string[], size: number) =>
    bucketOf(client, fromHex(token), clients, digests.map(fromHex), size),
  noise: (count: number, sigma: number) =>
    discreteGaussian(count, sigma, knownBelow()).map(String),
  /** Mean and variance of the operating system's noise, and what of its source is out of range. */
  randomNoise(count: number, sigma: number) {
    const samples = discreteGaussian(count, sigma).map(Number);
    const mean = samples.reduce((sum, one) => sum + one, 0) / count;
    const variance = samples.reduce((sum, one) => sum + one * one, 0) / count;
    const limits = [1n, 2n, 255n, 256n, 257n, 2n ** 64n + 1n];
    const drawn = limits.map((limit) => Array.from({ length: 400 }, () => randomBelow(limit)));
    const outside = drawn.flat().filter((one, at) => one < 0n || one >= limits[Math.floor(at / 400)]!);
    return { mean, variance, outside: outside.length, seen: new Set(drawn[2]).size };
  },
  vector(gradients: number[], meanLoss: number, curvature: number | null, clip: number, has: boolean) {
    const report = { gradients: Float32Array.from(gradients), meanLoss, curvature };
    return Array.from(vectors.encodeVector(report, clip, has));
  },
  noised: (vector: number[], sigma: number) =>
    Array.from(vectors.addNoise(Int32Array.from(vector), sigma, knownBelow()), String),
  privacy(settings: Record<string, unknown>, rounds: number, scalars: number) {
    const values = new SettingValues(toUtf8(JSON.stringify(settings)));
    return readPrivacy(values, rounds, scalars);
  },
  epsilon: (rho: number) => epsilonOf(rho, 1e-5),
};

async function run([name, ...given]: Case): Promise<unknown> {
  try {
    return await (functions[name] as (...given: unknown[]) => unknown)(...given);
  } catch (error) {
    if (error instanceof PhoneError) return error.constructor.name;
    throw error;
  }
}

/** The results of cases, as JSON. */
export async function resultsOf(cases: Case[]): Promise<string> {
  const results: unknown[] = [];
  for (const one of cases) results.push(await run(one));
  return JSON.stringify(results);
}
