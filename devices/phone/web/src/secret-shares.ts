/** Shamir's secret sharing (1979): any t of n shares give the secret, and fewer reveal nothing. */

import { fromHex, toHex, type Bytes } from "./bytes.ts";
import { randomBelow, type Below } from "./noise.ts";

/** The bytes of a share, little-endian. */
export const SHARE_BYTES = 33;

/** The smallest prime above all secrets, which are 256-bit numbers. */
const PRIME = 2n ** 256n + 297n;

/**
 * Returns one share of a secret per point: the values of a random polynomial of degree t − 1.
 *
 * @param secret 32 bytes, little-endian.
 */
export function splitSecret(
  secret: Bytes,
  points: readonly number[],
  threshold: number,
  below: Below = randomBelow,
): Bytes[] {
  const constant = BigInt(`0x${toHex(secret.slice().reverse())}`);
  const coefficients = Array.from({ length: threshold - 1 }, () => below(PRIME));
  return points.map((point) => {
    const value = coefficients.reduce((sum, one) => ((sum + one) * BigInt(point)) % PRIME, 0n);
    const share = (value + constant) % PRIME;
    return fromHex(share.toString(16).padStart(2 * SHARE_BYTES, "0")).reverse();
  });
}
