/**
 * Directions, seeds and batches as pure functions of 64-bit seeds, by Philox4x32-10.
 *
 * Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). docs/reference/wire.md
 * defines the words of a counter, and docs/reference/replay.md the order of elements.
 */

import { NORMAL_TABLE } from "./normal-table.ts";

export type Distribution = "gaussian" | "rademacher" | "orthogonal";

/** The purpose of a counter, stored in its word 2. */
export const DOMAIN = {
  direction: 1,
  loraA: 2,
  batchOrder: 3,
  querySeed: 4,
  roundRoot: 5,
  cohort: 6,
  poolSeed: 7,
  poolOrder: 8,
  orthogonalSign: 11,
} as const;

const M0_HIGH = 0xd251;
const M0_LOW = 0x1f53;
const M1_HIGH = 0xcd9e;
const M1_LOW = 0x8d57;
const M0 = 0xd2511f53;
const M1 = 0xcd9e8d57;

/** Writes the four random words of a counter under a key to `out`, starting at index `at`. */
export function philox(
  c0: number,
  c1: number,
  c2: number,
  c3: number,
  k0: number,
  k1: number,
  out: Uint32Array,
  at: number,
): void {
  for (let round = 0; round < 10; round++) {
    // The high words of c0·M0 and c2·M1, from products of halves that fit 32 bits.
    let low = c0 & 0xffff;
    let high = c0 >>> 16;
    let middle = Math.imul(M0_HIGH, low) + (Math.imul(M0_LOW, low) >>> 16) | 0;
    const high0 =
      Math.imul(M0_HIGH, high) +
      (middle >>> 16) +
      (((middle & 0xffff) + Math.imul(M0_LOW, high) | 0) >>> 16) | 0;
    low = c2 & 0xffff;
    high = c2 >>> 16;
    middle = Math.imul(M1_HIGH, low) + (Math.imul(M1_LOW, low) >>> 16) | 0;
    const high1 =
      Math.imul(M1_HIGH, high) +
      (middle >>> 16) +
      (((middle & 0xffff) + Math.imul(M1_LOW, high) | 0) >>> 16) | 0;
    const low0 = Math.imul(M0, c0);
    const low1 = Math.imul(M1, c2);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 = (k0 + 0x9e3779b9) | 0;
    k1 = (k1 + 0xbb67ae85) | 0;
  }
  out[at] = c0;
  out[at + 1] = c1;
  out[at + 2] = c2;
  out[at + 3] = c3;
}

const words = new Uint32Array(4);

/** Returns words 0 and 1 of a counter's output under a seed as one number. */
function draw(seed: bigint, c0: number, c1: number, c2: number, c3: number): bigint {
  philox(c0, c1, c2, c3, lowWord(seed), highWord(seed), words, 0);
  return BigInt(words[0]!) | (BigInt(words[1]!) << 32n);
}

/** Returns the low 32 bits of a seed. */
export function lowWord(seed: bigint): number {
  return Number(seed & 0xffffffffn) | 0;
}

/** Returns the high 32 bits of a seed. */
export function highWord(seed: bigint): number {
  return Number(seed >> 32n) | 0;
}

const BLOCK = { gaussian: 2048, rademacher: 8192 } as const;

const INDEX_BITS = 24;
/** The maximum number of elements of an orthogonal direction. */
export const MAX_ORTHOGONAL = 2 ** INDEX_BITS;
const UNIT_ELEMENT = 2048;
const LARGEST_ELEMENT = 2 ** 15 - 1;

/**
 * Returns the number of elements in one block of a direction; an orthogonal direction is a single block.
 */
export function blockSize(distribution: Distribution, count: number): number {
  return distribution === "orthogonal" ? Math.max(1, count) : BLOCK[distribution];
}

/** Writes a block of 2,048 standard normal numbers with scale 2⁻¹¹ to `out`. */
export function normalBlock(
  low: number,
  high: number,
  block: number,
  domain: number,
  out: Int16Array,
): void {
  for (let j = 0; j < 256; j++) {
    philox(256 * block + j, 0, domain, 0, low, high, words, 0);
    for (let word = 0; word < 4; word++) {
      const pair = words[word]!;
      out[512 * word + j] = NORMAL_TABLE[pair & 0xffff]!;
      out[512 * word + 256 + j] = NORMAL_TABLE[pair >>> 16]!;
    }
  }
}

/** Writes a block of 8,192 random signs ±2,048 to `out`; a set bit means +1. */
function signBlock(low: number, high: number, block: number, out: Int16Array): void {
  for (let j = 0; j < 64; j++) {
    philox(64 * block + j, 0, DOMAIN.direction, 0, low, high, words, 0);
    for (let word = 0; word < 4; word++) {
      let bits = words[word]!;
      for (let bit = 0; bit < 32; bit++) {
        out[256 * bit + 64 * word + j] = ((bits & 1) << 12) - 2048;
        bits >>>= 1;
      }
    }
  }
}

/**
 * Writes the row named by a seed, from an orthogonal set with as many elements as `out`.
 *
 * A seed consists of the key of its sets (upper 40 bits) and an index (lower 24 bits). The row is
 * nonzero in one block of 2ⁿ coordinates, where it is a row of a Hadamard matrix under the set's
 * random signs (`orthogonal_rows` in shared/protocol/directions.py).
 */
function orthogonalRow(seed: bigint, out: Int16Array): void {
  const count = out.length;
  const index = Number(seed & BigInt(MAX_ORTHOGONAL - 1));
  const key = seed >> BigInt(INDEX_BITS);
  const cycle = Math.floor(index / count);
  let row = ((index % count) * orthogonalStride(count)) % count;
  let [begin, size] = [0, 2 ** (31 - Math.clz32(count))];
  while (row >= size || !(count & size)) {
    if (count & size) {
      row -= size;
      begin += size;
    }
    size /= 2;
  }
  const squared = Math.floor(((2 * UNIT_ELEMENT) ** 2 * count) / size);
  const scale = Math.min((Math.floor(Math.sqrt(squared)) + 1) >> 1, LARGEST_ELEMENT);
  out.fill(0);
  let drawn = -1;
  for (let at = begin; at < begin + size; at++) {
    if (at >> 7 !== drawn) {
      drawn = at >> 7;
      philox(drawn, cycle, DOMAIN.orthogonalSign, 0, lowWord(key), highWord(key), words, 0);
    }
    const sign = (words[(at >> 5) & 3]! >>> (at & 31)) & 1;
    out[at] = sign === parity(row & (at - begin)) ? -scale : scale;
  }
}

function orthogonalStride(count: number): number {
  let stride = Math.floor((count * 40503) / 2 ** 16) || 1;
  while (greatestDivisor(stride, count) > 1) stride++;
  return stride;
}

function greatestDivisor(one: number, other: number): number {
  return other ? greatestDivisor(other, one % other) : one;
}

/** Returns the parity of the bits of a number below 2²⁴. */
function parity(bits: number): number {
  for (const half of [16, 8, 4, 2, 1]) bits ^= bits >> half;
  return bits & 1;
}

/**
 * Writes block number `block` of a seed's direction to `out`, which has room for one block. An
 * orthogonal direction is a single block.
 */
export function directionBlock(
  seed: bigint,
  block: number,
  distribution: Distribution,
  out: Int16Array,
): void {
  if (distribution === "orthogonal") orthogonalRow(seed, out);
  else if (distribution === "gaussian")
    normalBlock(lowWord(seed), highWord(seed), block, DOMAIN.direction, out);
  else signBlock(lowWord(seed), highWord(seed), block, out);
}

/** Returns a seed's direction, `count` integers with scale 2⁻¹¹. */
export function direction(seed: bigint, count: number, distribution: Distribution): Int16Array {
  const size = blockSize(distribution, count);
  const whole = new Int16Array(Math.ceil(count / size) * size);
  for (let first = 0; first < count; first += size)
    directionBlock(seed, first / size, distribution, whole.subarray(first, first + size));
  return whole.subarray(0, count);
}

/** Returns the seeds root, root + 1 … modulo 2⁶⁴. */
export function consecutiveSeeds(root: bigint, count: number): BigUint64Array<ArrayBuffer> {
  return BigUint64Array.from({ length: count }, (_, index) => root + BigInt(index));
}

/**
 * Returns the seed of the first of a round's q orthogonal directions. The others follow it
 * consecutively, as do the rounds.
 */
export function orthogonalRoot(
  runSeed: bigint,
  round: number,
  queries: number,
  track: number,
): bigint {
  const bits = BigInt(INDEX_BITS);
  const first = (BigInt(round - 1) * BigInt(queries)) % BigInt(MAX_ORTHOGONAL);
  return ((roundRoot(runSeed, 0, track) >> bits) << bits) | first;
}

/** Returns the K·q seeds of all queries of a round, step by step. */
export function querySeeds(
  root: bigint,
  seedStream: number,
  steps: number,
  queries: number,
): BigUint64Array<ArrayBuffer> {
  return BigUint64Array.from({ length: steps * queries }, (_, index) =>
    draw(root, index % queries, Math.floor(index / queries), DOMAIN.querySeed, seedStream),
  );
}

/** Returns the root seed of a round, a function of the run's seed, the round and the track. */
export function roundRoot(runSeed: bigint, round: number, track: number): bigint {
  return draw(runSeed, round, track, DOMAIN.roundRoot, 0);
}

/** Returns the seeds of a pool at given indices. */
export function poolSeeds(root: bigint, indices: Uint32Array): BigUint64Array<ArrayBuffer> {
  return BigUint64Array.from(indices, (index) => draw(root, index, 0, DOMAIN.poolSeed, 0));
}

/** Returns the K·q indices of the pool's seeds that a client's queries try. */
export function poolIndices(
  root: bigint,
  seedStream: number,
  steps: number,
  queries: number,
  size: number,
): Uint32Array<ArrayBuffer> {
  const order = randomOrder(DOMAIN.poolOrder, root, 0, seedStream, size);
  return Uint32Array.from({ length: steps * queries }, (_, index) => order[index % size]!);
}

/** Returns a random order of a client's examples; a step trains on the first examples. */
export function batchOrder(
  root: bigint,
  client: number,
  step: number,
  examples: number,
): Uint32Array<ArrayBuffer> {
  return randomOrder(DOMAIN.batchOrder, root, step, client, examples);
}

function randomOrder(
  domain: number,
  root: bigint,
  word1: number,
  word3: number,
  count: number,
): Uint32Array<ArrayBuffer> {
  const keys = new Uint32Array(4 * Math.ceil(count / 2));
  for (let at = 0; at < keys.length; at += 4)
    philox(at / 4, word1, domain, word3, lowWord(root), highWord(root), keys, at);
  const order = Uint32Array.from({ length: count }, (_, index) => index);
  return order.sort(
    (a, b) => keys[2 * a + 1]! - keys[2 * b + 1]! || keys[2 * a]! - keys[2 * b]! || a - b,
  );
}
