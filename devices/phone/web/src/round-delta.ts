/** The round delta: the aggregated scalars of one round. */

import { bytesOf, Reader, toHex, Writer, type Bytes } from "./bytes.ts";
import { LedgerError } from "./errors.ts";
import { GROUP, type Layout } from "./layout.ts";
import { consecutiveSeeds, poolSeeds, querySeeds } from "./philox.ts";
import {
  MAX_DENSE_VALUE,
  MAX_SHIFT,
  MAX_SHRINK,
  widest,
  type CoefficientBlock,
  type DenseValues,
  type Entry,
  type Shrink,
} from "./replay.ts";
import { check, KIND, MAX_SCALARS, pack, unpack } from "./wire.ts";

/** The track of the federation. */
export const GLOBAL_TRACK = 0;
/** The track of a client's private rounds. */
export const PERSONAL_TRACK = 2 ** 32 - 1;

/** Seeds derived from a round's root by `querySeeds`. */
export interface DerivedSeeds {
  readonly root: bigint;
  readonly seedStream: number;
  readonly steps: number;
  readonly queries: number;
}

/** Seeds given by indices in a pool. */
export interface PoolSeeds {
  readonly root: bigint;
  readonly indices: Uint32Array<ArrayBuffer>;
}

/** Consecutive seeds, as used for orthogonal directions. */
export interface ConsecutiveSeeds {
  readonly root: bigint;
  readonly count: number;
}

export type SeedSource =
  | DerivedSeeds
  | PoolSeeds
  | ConsecutiveSeeds
  | BigUint64Array<ArrayBuffer>;

/** Scalars of a round whose seeds have the same source. */
export interface Group {
  readonly origin: number;
  readonly source: SeedSource;
  readonly scalars: CoefficientBlock;
}

/** A client whose report is in a round delta. */
export interface Contributor {
  readonly client: number;
  readonly examples: number;
  readonly steps: number;
}

/** The changes that a round makes to the state, and its contributors. */
export interface RoundDelta {
  readonly round: number;
  readonly track: number;
  readonly token: Bytes;
  readonly contributors: readonly Contributor[];
  readonly entries: readonly (Group | Shrink | DenseValues)[];
}

const ENTRY = { explicit: 0, derived: 1, pool: 2, shrink: 3, dense: 4, consecutive: 5 } as const;

/** Returns the entries of a round delta in the form of `replay`. */
export function replayed(delta: RoundDelta): Entry[] {
  return delta.entries.map((entry) =>
    "source" in entry ? { seeds: seedsOf(entry.source), scalars: entry.scalars } : entry,
  );
}

/**
 * Returns the entries that revert rounds exactly, with negated coefficients; null if one of the
 * rounds has shrinks or dense values, which cannot be reverted.
 *
 * If one of the rounds already reverts another, the groups of both are left out.
 */
export function reverting(deltas: readonly RoundDelta[]): Group[] | null {
  const left = new Map<string, Group[]>();
  const nameOf = (group: Group): string => {
    const writer = new Writer();
    writeGroup(writer, group);
    return toHex(writer.end());
  };
  for (const entry of deltas.flatMap((delta) => delta.entries)) {
    if (!("source" in entry)) return null;
    const { shift, coefficients } = entry.scalars;
    const scalars = { shift, coefficients: coefficients.map((one) => -one) };
    const negated = { ...entry, scalars };
    if (left.get(nameOf(negated))?.pop()) continue;
    left.set(nameOf(entry), [...(left.get(nameOf(entry)) ?? []), negated]);
  }
  return [...left.values()].flat();
}

function seedsOf(source: SeedSource): BigUint64Array<ArrayBuffer> {
  if (source instanceof BigUint64Array) return source;
  if ("indices" in source) return poolSeeds(source.root, source.indices);
  if ("count" in source) return consecutiveSeeds(source.root, source.count);
  return querySeeds(source.root, source.seedStream, source.steps, source.queries);
}

/** Returns a round delta as a frame. */
export function encodeRoundDelta(delta: RoundDelta): Bytes {
  const writer = new Writer().u32(delta.round, delta.track).bytes(delta.token);
  writer.u32(delta.contributors.length, delta.entries.length);
  for (const one of delta.contributors) writer.u32(one.client, one.examples).u16(one.steps);
  for (const entry of delta.entries) writeEntry(writer, entry);
  return pack(KIND.roundDelta, writer.end());
}

function writeEntry(writer: Writer, entry: Group | Shrink | DenseValues): void {
  if ("bits" in entry) writer.u8(ENTRY.shrink, entry.bits);
  else if ("values" in entry)
    writer.u8(ENTRY.dense).u32(entry.first, entry.values.length).array(entry.values);
  else writeGroup(writer, entry);
}

function writeGroup(writer: Writer, { origin, source, scalars }: Group): void {
  const [kind, seeds] = encodeSource(source);
  writer.u8(kind).u32(origin).u8(scalars.shift).u32(scalars.coefficients.length);
  writer.bytes(seeds).array(scalars.coefficients);
}

function encodeSource(source: SeedSource): readonly [number, Bytes] {
  if (source instanceof BigUint64Array) return [ENTRY.explicit, bytesOf(source)];
  const writer = new Writer().u64(source.root);
  if ("indices" in source) return [ENTRY.pool, writer.array(source.indices).end()];
  if ("count" in source) return [ENTRY.consecutive, writer.end()];
  writer.u32(source.seedStream).u16(source.steps, source.queries);
  return [ENTRY.derived, writer.end()];
}

/** Reads a round delta; throws `FrameError` if it is invalid. */
export function decodeRoundDelta(frame: Bytes): RoundDelta {
  const reader = unpack(frame, KIND.roundDelta);
  const start = { round: reader.u32(), track: reader.u32(), token: reader.bytes(8) };
  const [contributorCount, entryCount] = [reader.u32(), reader.u32()];
  const contributors: Contributor[] = [];
  for (let index = 0; index < contributorCount; index++)
    contributors.push({ client: reader.u32(), examples: reader.u32(), steps: reader.u16() });
  const entries: (Group | Shrink | DenseValues)[] = [];
  for (let index = 0; index < entryCount; index++) entries.push(readEntry(reader));
  reader.end();
  check(
    start.track === PERSONAL_TRACK || entries.length === 1 || !entries.some(isDense),
    "dense values are among other entries in a track that is not private",
  );
  check(
    start.round >= 1 &&
      contributors.every((one, index) => !index || contributors[index - 1]!.client < one.client),
    "the round delta's round or contributors are out of order",
  );
  return { ...start, contributors, entries };
}

function isDense(entry: Group | Shrink | DenseValues): entry is DenseValues {
  return "values" in entry;
}

/**
 * Returns the common intercept that a round of a federation adds to the label bias, if there is
 * one.
 *
 * @throws LedgerError if the round adds dense values to anything else.
 */
export function commonIntercept(delta: RoundDelta, layout: Layout): DenseValues | undefined {
  const values = delta.entries.find(isDense);
  if (!values || delta.track === PERSONAL_TRACK) return undefined;
  const bias = layout.tensors.at(-1)!;
  const count = bias.group === GROUP.labelBias ? bias.rows : 0;
  const isBias = values.values.length === count && values.first === layout.size - count;
  if (!isBias) throw new LedgerError(`round ${delta.round}: dense values beside the label bias`);
  return values;
}

function readEntry(reader: Reader): Group | Shrink | DenseValues {
  const kind = reader.u8();
  if (kind === ENTRY.shrink) {
    const bits = reader.u8();
    check(bits >= 1 && bits <= MAX_SHRINK, `a shrink by ${bits} bits is out of range`);
    return { bits };
  }
  if (kind === ENTRY.dense) {
    const [first, count] = [reader.u32(), reader.u32()];
    check(count >= 1 && count <= MAX_SCALARS, `${count} dense values are out of range`);
    const values = new BigInt64Array(reader.bytes(8 * count).buffer);
    check(widest(values) <= MAX_DENSE_VALUE, "a dense value is too large");
    return { first, values };
  }
  check(kind < ENTRY.shrink || kind === ENTRY.consecutive, `an entry of kind ${kind} is unknown`);
  return readGroup(reader, kind);
}

function readGroup(reader: Reader, kind: number): Group {
  const [origin, shift, count] = [reader.u32(), reader.u8(), reader.u32()];
  check(
    shift <= MAX_SHIFT && count >= 1 && count <= MAX_SCALARS,
    "a group of the round delta is out of range",
  );
  const source = readSource(reader, kind, count);
  return { origin, source, scalars: { shift, coefficients: readCoefficients(reader, count) } };
}

function readCoefficients(reader: Reader, count: number): Int32Array<ArrayBuffer> {
  return new Int32Array(reader.bytes(4 * count).buffer);
}

function readSource(reader: Reader, kind: number, count: number): SeedSource {
  if (kind === ENTRY.explicit) return new BigUint64Array(reader.bytes(8 * count).buffer);
  const root = reader.u64();
  if (kind === ENTRY.pool)
    return { root, indices: new Uint32Array(reader.bytes(4 * count).buffer) };
  if (kind === ENTRY.consecutive) return { root, count };
  const source = { root, seedStream: reader.u32(), steps: reader.u16(), queries: reader.u16() };
  check(
    source.steps * source.queries === count,
    "a group's coefficients are not one per derived seed",
  );
  return source;
}
