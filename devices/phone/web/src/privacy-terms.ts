/**
 * The differential privacy of a run: the source of the noise, and its cost
 * (shared/terms/privacy.py).
 */

import { noiseMultiplierFor, rhoOf, rhoOfSummedNoise } from "./accountant.ts";
import { SettingsError } from "./errors.ts";
import { LEAST_CLIENTS, leastNumber } from "./neighbours.ts";
import type { SettingValues } from "./setting-values.ts";
import { OTHERS, SENSITIVITY } from "./vector.ts";

/** The noise that protects a client's reports in a run, and their privacy cost. */
export interface PrivacyTerms {
  readonly mode: "central" | "local" | "distributed";
  /** The maximum norm of all projected gradients of a client in a round. */
  readonly clip: number;
  /** Whether every instruction sets its own clip. */
  readonly isAdaptive: boolean;
  readonly rounds: number;
  /** σ of the noise that a client adds to every number; 0 if the server adds the noise. */
  readonly sigma: number;
  /** The ρ that a round costs, at the level that the mode protects. */
  readonly rho: number;
  readonly isMasked: boolean;
  /** The minimum number of clients in a drawn bucket; 0 if a round has one sum. */
  readonly bucket: number;
  /** The minimum number of clients in a round if it affects privacy; otherwise 1. */
  readonly minimum: number;
}

/**
 * Reads the differential privacy of a run; null if it has none.
 *
 * @param rounds rounds of the federation.
 * @param scalars projected gradients of a client in a round.
 * @throws SettingsError if a setting has the wrong type or is out of range.
 */
export function readPrivacy(
  read: SettingValues,
  rounds: number,
  scalars: number,
): PrivacyTerms | null {
  const named = read.text("privacy.mode");
  if (named === "none" || !rounds) return null;
  const mode = named as PrivacyTerms["mode"];
  const given = read.number("privacy.noise-multiplier");
  const [epsilon, delta] = [read.number("privacy.epsilon"), read.number("privacy.delta")];
  if (!(given || epsilon) || delta === 1)
    throw new SettingsError("privacy: without a noise multiplier or an ε there is no noise");
  const share = read.number("privacy.honest-share");
  if (mode === "distributed" && !share)
    throw new SettingsError("privacy.honest-share is not a share of a sum's clients");
  const isAdaptive = read.flag("privacy.adaptive-clip");
  const isMasked = read.flag("privacy.secure-aggregation");
  const bucket = read.whole("privacy.bucket");
  const counts = isMasked || mode === "distributed";
  const minimum = counts ? read.whole("cohort.minimum") : 1;
  if (bucket && (bucket < LEAST_CLIENTS || (counts && bucket > minimum)))
    throw new SettingsError(`privacy.bucket: ${bucket} is out of range`);
  const doubled = mode === "local" ? 2 : 1; // any two reports of a client differ by two vectors
  const multiplier = given || doubled * noiseMultiplierFor(epsilon, delta, rounds);
  const summed = bucket ? leastNumber(bucket) : minimum;
  const honest =
    mode === "distributed" ? Math.max(1, Math.floor(roundTo9(summed * share))) : 1;
  const sigma =
    mode === "central" ? 0 : Math.ceil((multiplier * SENSITIVITY) / Math.sqrt(honest));
  if (!Number.isSafeInteger(sigma))
    throw new SettingsError("privacy.noise-multiplier is out of range");
  const numbers = scalars + OTHERS + (isAdaptive ? 1 : 0);
  const rho = {
    central: () => rhoOf(multiplier),
    local: () => rhoOf(sigma / (2 * SENSITIVITY)),
    distributed: () => rhoOfSummedNoise(SENSITIVITY, sigma, honest, numbers),
  }[mode]();
  const clip = read.number("privacy.clip");
  return { mode, clip, isAdaptive, rounds, sigma, rho, isMasked, bucket, minimum };
}

function roundTo9(value: number): number {
  return Math.round(value * 1e9) / 1e9;
}
