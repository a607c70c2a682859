/**
 * A client's vector in a private round: everything that it reports, clipped as a whole, in
 * integers.
 *
 * docs/reference/wire.md defines the numbers, and shared/privacy/vector.py explains them.
 */

import type { Report } from "./answers.ts";
import { Writer, type Bytes } from "./bytes.ts";
import { discreteGaussian, type Below } from "./noise.ts";
import { check, checkClient, KIND, MAX_SCALARS, pack, unpack } from "./wire.ts";

/** The maximum norm of a vector, in units of its integers. */
export const SENSITIVITY = 2 ** 24;
/** The number of values besides the projected gradients; an indicator is one more. */
export const OTHERS = 3;

const NOISED_LIMIT = 2n ** 42n;
const SHARE = SENSITIVITY / 4;
const LOSS_LIMIT = 2;
const CURVATURE_LIMIT = 64;
// The rounding error of a norm of 2²⁰ numbers is below 2⁻³², so a norm within this factor is within
// the limit.
const MARGIN = 1 - 2 ** -30;
const LEAST_CLIP = 1e-60;
const LOW = 2 ** 24;

/** A vector without masks: int32, or int64 if the client has added noise. */
export type PlainVector = Int32Array<ArrayBuffer> | BigInt64Array<ArrayBuffer>;
/** A vector; with masks it is uint64. */
type Vector = PlainVector | BigUint64Array<ArrayBuffer>;

/** A client's vector as the report on an instruction. */
export interface VectorReport<T extends Vector = Vector> {
  readonly token: Bytes;
  readonly client: number;
  readonly vector: T;
}

/**
 * Returns a report's vector for a clip, int32 [K·q + 3 or 4]; rounding never increases its norm.
 */
export function encodeVector(
  { gradients, meanLoss, curvature }: Pick<Report, "gradients" | "meanLoss" | "curvature">,
  clip: number,
  hasIndicator: boolean,
): Int32Array<ArrayBuffer> {
  const norm = Math.sqrt(gradients.reduce((sum, one) => sum + one * one, 0));
  const others = OTHERS + (hasIndicator ? 1 : 0);
  const limit = Math.floor(Math.sqrt(SENSITIVITY ** 2 - others * SHARE ** 2));
  const scale = (limit * MARGIN) / Math.max(norm, clip, LEAST_CLIP);
  const root = Math.sqrt(CURVATURE_LIMIT * Math.abs(curvature ?? 0));
  const said = [Math.min(1, Math.max(-1, meanLoss / LOSS_LIMIT)), Math.min(1, root / CURVATURE_LIMIT), 1];
  if (hasIndicator) said.push(norm <= clip ? 1 : -1);
  const scaled = Array.from(gradients, (one) => one * scale);
  return Int32Array.from([...scaled, ...said.map((one) => one * SHARE)], Math.trunc);
}

/** Returns a vector with noise of σ on every number, int64, limited to ±2⁴². */
export function addNoise(
  vector: Int32Array,
  sigma: number,
  below?: Below,
): BigInt64Array<ArrayBuffer> {
  const noise = discreteGaussian(vector.length, sigma, below);
  return BigInt64Array.from(noise, (one, at) => {
    const sum = BigInt(vector[at]!) + one;
    if (sum > NOISED_LIMIT) return NOISED_LIMIT;
    return sum < -NOISED_LIMIT ? -NOISED_LIMIT : sum;
  });
}

/** Returns a vector report as a frame. */
export function encodeVectorReport({ token, client, vector }: VectorReport): Bytes {
  const body = new Writer().bytes(token).u32(client, vector.length).array(vector).end();
  return pack(kindOfVector(vector), body);
}

/** Reads a vector report of any of the three kinds; throws `FrameError` if it is invalid. */
export function decodeVectorReport(frame: Bytes): VectorReport {
  const { vectorReport, noisedVectorReport, maskedReport } = KIND;
  const reader = unpack(frame, vectorReport, noisedVectorReport, maskedReport);
  const kind = frame[3];
  const start = { token: reader.bytes(8), client: reader.u32() };
  const count = reader.u32();
  check(
    count > OTHERS && count <= MAX_SCALARS + OTHERS + 1,
    `a vector report of ${count} numbers is out of range`,
  );
  const { buffer } = reader.bytes((kind === vectorReport ? 4 : 8) * count);
  reader.end();
  checkClient(start.client);
  if (kind === maskedReport) return { ...start, vector: new BigUint64Array(buffer) };
  if (kind === vectorReport) {
    const vector = new Int32Array(buffer);
    check(isWithinSensitivity(vector), "the vector is longer than it may be");
    return { ...start, vector };
  }
  const vector = new BigInt64Array(buffer);
  check(
    vector.every((one) => one >= -NOISED_LIMIT && one <= NOISED_LIMIT),
    "a number in the vector is out of its range",
  );
  return { ...start, vector };
}

function kindOfVector(vector: Vector): number {
  if (vector instanceof Int32Array) return KIND.vectorReport;
  return vector instanceof BigInt64Array ? KIND.noisedVectorReport : KIND.maskedReport;
}

/**
 * Returns whether a norm is at most `SENSITIVITY`, computed exactly by summing squares in two
 * halves.
 */
function isWithinSensitivity(vector: Int32Array): boolean {
  let [high, low] = [0, 0];
  for (const one of vector) {
    if (Math.abs(one) > SENSITIVITY) return false;
    const square = one * one;
    high += Math.floor(square / LOW);
    low += square % LOW;
  }
  return BigInt(high) * BigInt(LOW) + BigInt(low) <= BigInt(SENSITIVITY) ** 2n;
}
