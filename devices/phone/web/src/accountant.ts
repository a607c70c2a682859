/**
 * Cost of reports under Gaussian noise in zero-concentrated privacy ρ
 * (shared/privacy/accountant.py).
 *
 * Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy" (2020), theorem 14 and
 * corollary 13. The ρ of several reports adds up.
 */

const GOLDEN = (Math.sqrt(5) - 1) / 2;
const SEARCH_STEPS = 80;

/**
 * Tolerance, because sums of equal ρ round differently from their product; a plan's last round must
 * fit.
 */
export const ROUNDING = 1 + 1e-9;

/** Returns the ρ of reports with one noise multiplier. */
export function rhoOf(noiseMultiplier: number, reports = 1): number {
  return reports / (2 * noiseMultiplier ** 2);
}

/**
 * Returns the ρ of a sum of `numbers` values to which each of `summands` clients added noise of σ.
 *
 * Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism" (2021), theorem 1.
 */
export function rhoOfSummedNoise(
  sensitivity: number,
  sigma: number,
  summands: number,
  numbers: number,
): number {
  if (sigma < 0.5) return Infinity; // nothing is proven
  const square = 2 * (Math.PI * sigma) ** 2;
  let correction = 0;
  if (Math.exp(-square / 2))
    for (let k = 1; k < summands; k++) correction += 10 * Math.exp((-square * k) / (k + 1));
  const one = sensitivity / (sigma * Math.sqrt(summands));
  return (one + correction * Math.sqrt(numbers)) ** 2 / 2;
}

/** Returns an ε for which ρ-zCDP implies (ε, δ)-differential privacy. */
export function epsilonOf(rho: number, delta: number): number {
  if (rho <= 0) return 0;
  let [low, high] = [-40, 40]; // bounds of ln(α − 1), in which the bound has a single minimum
  for (let step = 0; step < SEARCH_STEPS; step++) {
    const width = GOLDEN * (high - low);
    if (epsilonAt(high - width, rho, delta) < epsilonAt(low + width, rho, delta))
      high = low + width;
    else low = high - width;
  }
  return Math.max(0, epsilonAt((low + high) / 2, rho, delta));
}

/** Returns the smallest noise multiplier with which the reports stay within (ε, δ). */
export function noiseMultiplierFor(epsilon: number, delta: number, reports: number): number {
  const most = rhoWithin(epsilon, delta);
  let multiplier = Math.sqrt(reports / (2 * most));
  while (rhoOf(multiplier, reports) > most) multiplier *= 1 + Number.EPSILON;
  return multiplier;
}

/** Returns the largest ρ that stays within (ε, δ), rounded down. */
export function rhoWithin(epsilon: number, delta: number): number {
  let [low, high] = [0, 1];
  while (epsilonOf(high, delta) <= epsilon) [low, high] = [high, 2 * high];
  for (let step = 0; step < SEARCH_STEPS; step++) {
    const middle = (low + high) / 2;
    if (epsilonOf(middle, delta) <= epsilon) low = middle;
    else high = middle;
  }
  return low;
}

/** Returns the bound of `epsilonOf` at α = 1 + exp(logExcess). */
function epsilonAt(logExcess: number, rho: number, delta: number): number {
  const excess = Math.exp(logExcess);
  const alpha = 1 + excess;
  const tail = -Math.log(delta) + excess * logExcess - alpha * Math.log1p(excess);
  return alpha * rho + tail / excess;
}
