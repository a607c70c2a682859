/**
 * Exact replay: state ← state + Σ c·z(seed) in integers, with the same bits on every machine.
 *
 * The state is int64 with unit 2⁻⁵¹, a direction has unit 2⁻¹¹, a coefficient is int32 with unit
 * 2^(shift − 40). docs/reference/replay.md is the contract.
 */

import { bytesOf, sha256, type Bytes } from "./bytes.ts";
import { ReplayError } from "./errors.ts";
import { blockSize, directionBlock, type Distribution } from "./philox.ts";

export type State = BigInt64Array<ArrayBuffer>;

/** Coefficients with a common shift from 0 to 10, in the order of their seeds. */
export interface CoefficientBlock {
  readonly shift: number;
  readonly coefficients: Int32Array<ArrayBuffer>;
}

/** Seeds, and one coefficient for each. */
export interface ScalarGroup {
  readonly seeds: BigUint64Array<ArrayBuffer>;
  readonly scalars: CoefficientBlock;
}

/** An ordered change: state −= state >> bits. */
export interface Shrink {
  readonly bits: number;
}

/** Values with unit 2⁻⁵¹ to add to consecutive elements; only private tracks hold them. */
export interface DenseValues {
  readonly first: number;
  readonly values: State;
}

export type Entry = ScalarGroup | Shrink | DenseValues;

export const MAX_SHIFT = 10;
export const MAX_SHRINK = 62;
export const MAX_DENSE_VALUE = 2n ** 61n;
const UNIT = 2 ** -51;
const COEFFICIENT_BITS = 40;
const INT32_MAX = 2 ** 31 - 1;
const MAX_COEFFICIENT = 1024;
const STATE_LIMIT = 2n ** 62n;
const DIRECTION_BITS = 15n;

/** Returns the state before the first round: `size` zeros. */
export function zeroState(size: number): State {
  return new BigInt64Array(size);
}

/** Returns numbers as dense values, rounded half to even; throws `ReplayError` beyond ±1,024. */
export function denseValues(first: number, numbers: Float64Array): DenseValues {
  if (!numbers.every((one) => Math.abs(one) <= MAX_COEFFICIENT))
    throw new ReplayError("a private value is not finite or too large to be stored");
  const values = BigInt64Array.from(numbers, (one) => BigInt(roundHalfEven(one / UNIT)));
  return { first, values };
}

/** Returns the largest absolute value; 0 if there is none. */
export function widest(values: State): bigint {
  let bound = 0n;
  for (const value of values) {
    const size = value < 0n ? -value : value;
    if (size > bound) bound = size;
  }
  return bound;
}

/** Returns a number rounded to an integer, halves to the even one. */
export function roundHalfEven(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  if (rest !== 0.5) return rest < 0.5 ? floor : floor + 1;
  return floor % 2 === 0 ? floor : floor + 1;
}

/** Returns coefficients as blocks of integers with the smallest shift that fits. */
export function quantize(coefficients: Float64Array): CoefficientBlock[] {
  if (coefficients.length === 0) return [];
  if (!coefficients.every((value) => Math.abs(value) <= MAX_COEFFICIENT))
    throw new ReplayError("a coefficient is not finite or too large to be applied");
  let scaled = coefficients;
  for (let shift = 0; shift <= MAX_SHIFT; shift++) {
    scaled = coefficients.map((value) => roundHalfEven(value * 2 ** (COEFFICIENT_BITS - shift)));
    if (scaled.every((value) => Math.abs(value) <= INT32_MAX))
      return [{ shift, coefficients: Int32Array.from(scaled) }];
  }
  const blocks: CoefficientBlock[] = [];
  while (scaled.some((value) => value !== 0)) {
    const part = scaled.map((value) => Math.max(-INT32_MAX, Math.min(INT32_MAX, value)));
    blocks.push({ shift: MAX_SHIFT, coefficients: Int32Array.from(part) });
    scaled = scaled.map((value, index) => value - part[index]!);
  }
  return blocks;
}

/** Throws `ReplayError` if changes could leave the exact range, before any of them is applied. */
export function checkFits(state: State, entries: readonly Entry[]): void {
  let bound = widest(state);
  let fits = bound < STATE_LIMIT;
  for (const entry of entries) {
    if ("bits" in entry) {
      bound -= bound >> BigInt(entry.bits);
      continue;
    }
    if ("values" in entry) {
      elementsOf(state, entry);
      bound += widest(entry.values);
    } else {
      let total = 0; // exact: at most 2^20 coefficients of 2^31
      for (const value of entry.scalars.coefficients) total += Math.abs(value);
      bound += BigInt(total) << (BigInt(entry.scalars.shift) + DIRECTION_BITS);
    }
    fits &&= bound < STATE_LIMIT;
  }
  if (!fits) throw new ReplayError("the update does not fit the exact state and was not applied");
}

/** Returns the state after applying entries in order; throws `ReplayError` if they do not fit. */
export function replay(
  state: State,
  entries: readonly Entry[],
  distribution: Distribution,
): State {
  checkFits(state, entries);
  return rebuild(state, entries, distribution);
}

/**
 * Returns the state after the entries of many rounds that are known to fit, without checking again.
 *
 * Coefficients of equal seeds are summed first. Sums are modulo 2⁶⁴, so the bits are the same.
 */
export function rebuild(
  state: State,
  entries: readonly Entry[],
  distribution: Distribution,
): State {
  const after = state.slice();
  let sums = new Map<bigint, bigint>();
  for (const entry of entries) {
    if ("seeds" in entry) {
      const shift = BigInt(entry.scalars.shift);
      entry.seeds.forEach((seed, index) => {
        const coefficient = BigInt(entry.scalars.coefficients[index]!) << shift;
        sums.set(seed, (sums.get(seed) ?? 0n) + coefficient);
      });
    } else if ("values" in entry) {
      const part = elementsOf(after, entry);
      entry.values.forEach((value, index) => {
        part[index] = part[index]! + value;
      });
    } else {
      fold(after, sums, distribution);
      sums = new Map();
      const bits = BigInt(entry.bits);
      after.forEach((value, index) => {
        after[index] = value - (value >> bits);
      });
    }
  }
  fold(after, sums, distribution);
  return after;
}

function elementsOf(state: State, dense: DenseValues): State {
  const part = state.subarray(dense.first, dense.first + dense.values.length);
  if (part.length !== dense.values.length)
    throw new ReplayError("dense values are outside the state");
  return part;
}

const PART_BITS = 26n;
const EXACT = 2 ** 53;
const LARGEST = 2 ** 15;

/** A coefficient h·2²⁶ + l with |l| at most 2²⁵, so that both products with z are exact doubles. */
interface SplitCoefficient {
  readonly seed: bigint;
  readonly high: number;
  readonly low: number;
}

function split([seed, sum]: readonly [bigint, bigint]): SplitCoefficient {
  const low = BigInt.asIntN(26, sum);
  const high = BigInt.asIntN(64, sum) - low >> PART_BITS;
  return { seed, high: Number(high), low: Number(low) };
}

/** Divides coefficients into groups whose sums of products with directions stay below 2⁵³. */
function exactRuns(coefficients: readonly SplitCoefficient[]): SplitCoefficient[][] {
  const runs: SplitCoefficient[][] = [];
  let [high, low] = [EXACT, EXACT];
  for (const one of coefficients) {
    high += Math.abs(one.high) * LARGEST;
    low += Math.abs(one.low) * LARGEST;
    if (Math.max(high, low) > EXACT) {
      runs.push([]);
      high = Math.abs(one.high) * LARGEST;
      low = Math.abs(one.low) * LARGEST;
    }
    runs.at(-1)!.push(one);
  }
  return runs;
}

/** Adds Σ c·z(seed) to a state in place, modulo 2⁶⁴. */
function fold(state: State, sums: ReadonlyMap<bigint, bigint>, distribution: Distribution): void {
  const used = [...sums].filter(([, sum]) => BigInt.asIntN(64, sum) !== 0n).map(split);
  const size = blockSize(distribution, state.length);
  const z = new Int16Array(size);
  const [highs, lows] = [new Float64Array(size), new Float64Array(size)];
  for (const run of exactRuns(used)) {
    for (let first = 0; first < state.length; first += size) {
      const count = Math.min(size, state.length - first);
      highs.fill(0);
      lows.fill(0);
      for (const { seed, high, low } of run) {
        directionBlock(seed, first / size, distribution, z);
        for (let index = 0; index < count; index++) {
          highs[index]! += high * z[index]!;
          lows[index]! += low * z[index]!;
        }
      }
      for (let index = 0; index < count; index++) {
        const sum = (BigInt(highs[index]!) << PART_BITS) + BigInt(lows[index]!);
        state[first + index] = state[first + index]! + sum;
      }
    }
  }
}

/** Returns a state as float32 weights, each rounded once. */
export function toFloat32(state: State): Float32Array<ArrayBuffer> {
  return Float32Array.from(state, (value) => {
    if (BigInt.asIntN(53, value) === value) return Number(value) * UNIT;
    // 48 bits of a wider value are an exact double. The cut-off bits set the lowest of them if any
    // is nonzero, so that they still affect the single rounding to float32.
    const cut = BigInt.asUintN(16, value) ? 1n : 0n;
    return Number((value >> 16n) | cut) * 2 ** 16 * UNIT;
  });
}

/** Returns the SHA-256 of layout hash and state, 32 bytes. */
export function digest(layoutHash: Bytes, state: State): Promise<Bytes> {
  return sha256(layoutHash, bytesOf(state));
}
