/**
 * Exact samples of the discrete Gaussian, from the operating system's randomness.
 *
 * Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy" (2020), algorithms 1
 * to 3, with only integers and rational probabilities. The noise never comes from Philox, whose
 * seeds are sent.
 */

import { fromHex, toHex } from "./bytes.ts";

/** A source of randomness that maps n to a uniform integer from 0 to n − 1. */
export type Below = (limit: bigint) => bigint;

const POOL_BYTES = 4096;
const pool = new Uint8Array(POOL_BYTES);
let used = POOL_BYTES;

/** Returns a uniform integer below a limit, from the operating system's randomness. */
export function randomBelow(limit: bigint): bigint {
  const digits = (limit - 1n).toString(16).padStart(2, "0");
  const bytes = Math.ceil(digits.length / 2);
  const first = fromHex(digits.padStart(2 * bytes, "0"))[0]!;
  const mask = first ? 2 ** (32 - Math.clz32(first)) - 1 : 0;
  for (;;) {
    if (used + bytes > POOL_BYTES) {
      crypto.getRandomValues(pool);
      used = 0;
    }
    const drawn = pool.slice(used, used + bytes);
    pool.fill(0, used, used + bytes);
    used += bytes;
    drawn[0]! &= mask;
    const value = BigInt(`0x${toHex(drawn)}`);
    if (value < limit) return value;
  }
}

/**
 * Returns samples in which an integer x has a probability proportional to exp(−x²/(2σ²)).
 *
 * @param sigma σ, a positive integer.
 */
export function discreteGaussian(
  count: number,
  sigma: number,
  below: Below = randomBelow,
): bigint[] {
  return Array.from({ length: count }, () => gaussian(BigInt(sigma), below));
}

/** Returns a sample of the discrete Gaussian (algorithm 3). */
function gaussian(sigma: bigint, below: Below): bigint {
  const [scale, variance] = [sigma + 1n, sigma * sigma];
  for (;;) {
    const sample = laplace(scale, below);
    // exp(−(|y| − σ²/t)² / (2σ²)), with the fraction's terms multiplied by t²
    const distance = (sample < 0n ? -sample : sample) * scale - variance;
    if (bernoulliExp(distance * distance, 2n * variance * scale * scale, below)) return sample;
  }
}

/** Returns a sample x with a probability proportional to exp(−|x|/scale) (algorithm 2). */
function laplace(scale: bigint, below: Below): bigint {
  for (;;) {
    const remainder = below(scale);
    if (!bernoulliExp(remainder, scale, below)) continue;
    let multiples = 0n;
    while (bernoulliExp(1n, 1n, below)) multiples++;
    const size = remainder + scale * multiples;
    const isNegative = below(2n) > 0n;
    if (size || !isNegative) return isNegative ? -size : size; // otherwise 0 would count twice
  }
}

/** Returns true with probability exp(−numerator/denominator) (algorithm 1). */
function bernoulliExp(numerator: bigint, denominator: bigint, below: Below): boolean {
  for (let whole = numerator / denominator; whole > 0n; whole--)
    if (!bernoulliExpOfFraction(1n, 1n, below)) return false;
  return bernoulliExpOfFraction(numerator % denominator, denominator, below);
}

/** Returns true with probability exp(−γ) for a fraction γ from 0 to 1, by its series. */
function bernoulliExpOfFraction(numerator: bigint, denominator: bigint, below: Below): boolean {
  let count = 1n;
  while (below(denominator * count) < numerator) count++;
  return count % 2n === 1n;
}
