/**
 * The step size of private rounds, derived from the loss increase that steps cause through noise.
 *
 * The formulas and constants are those of shared/protocol/step_size.py, which explains them
 * (docs/concepts/step-size.md).
 */

import { GROUP, type Layout } from "./layout.ts";

const WARM_UP = 32;
const WARM_UP_SHARE = 0.1;
const FIRST_SHARE = 0.04;
const GAIN_SHARE = 0.5;
const LEAST_SHARE = 0.1;
const LEAST_LEFT = 0.1;
const MOST_AT_ONCE = 0.01;
const MEMORY = 50;
const REACH = 30;
const OUTLIER = 4;
const CURVATURE_SHARE = 16;
const RISE = 3;
const LEAST_RISE = 0.1;
const AT_ONCE = 4;
const LEAST_SCALE = 1;
const FEWEST = 8;
const SETBACK = 0.1;
const COMPONENT_TIME = 5;

/** The measurements of a round; the loss of a failed round is infinite. */
export interface Observation {
  readonly loss: number;
  readonly meanSquare: number;
  readonly squaredNorm: number;
  readonly learningRate: number;
  readonly curvature: number | null;
  readonly directions: number;
}

/** A running mean: the plain mean of the first values, then an exponential one. */
class Average {
  readonly mean: number;
  readonly variance: number;
  readonly count: number;

  constructor(mean = 0, variance = 0, count = 0) {
    this.mean = mean;
    this.variance = variance;
    this.count = count;
  }

  /** Returns the average after one more value, which is itself a mean of `weight` values. */
  after(value: number, memory: number, weight = 1): Average {
    const count = this.count + weight;
    const share = weight / Math.min(count, Math.max(memory, weight));
    const off = value - this.mean;
    const variance =
      this.count === 0 ? 0 : (1 - share) * (this.variance + share * off * off * weight);
    return new Average(this.mean + share * off, variance, Math.min(count, memory + weight));
  }

  /** The standard error of the mean. */
  get error(): number {
    return Math.sqrt(this.variance / Math.max(this.count, 1));
  }
}

/** The knowledge after some rounds. */
interface Known {
  readonly done: number;
  readonly spent: number;
  readonly backTo: number | null;
  readonly good: number;
  readonly goodSpent: number;
  readonly lowest: number;
  readonly share: number;
  readonly start: Average;
  readonly loss: Average;
  readonly curvature: Average;
  readonly measured: number;
  readonly meanSquare: Average;
  readonly squaredNorm: Average;
}

const NOTHING: Known = {
  done: 0,
  spent: 0,
  backTo: null,
  good: 0,
  goodSpent: 0,
  lowest: Infinity,
  share: 1,
  start: new Average(),
  loss: new Average(),
  curvature: new Average(),
  measured: 0,
  meanSquare: new Average(),
  squaredNorm: new Average(),
};

/** The step size after the observed rounds; immutable. */
export class StepSize {
  readonly #rounds: number;
  readonly #given: number | null;
  readonly #epsilon: number;
  readonly #known: Known;

  /**
   * @param rounds number of rounds of the whole run.
   * @param given η set by hand; null to estimate it.
   * @param epsilon size ε of perturbations.
   */
  constructor(rounds: number, given: number | null, epsilon: number, known: Known = NOTHING) {
    this.#rounds = rounds;
    this.#given = given;
    this.#epsilon = epsilon;
    this.#known = known;
  }

  /** Returns the step size after one more round. */
  after(observation: Observation): StepSize {
    const known = this.#known;
    const isAtStart = this.#given !== null && known.done === 0;
    let { loss } = known;
    if (!isAtStart) loss = loss.after(observation.loss, this.#memory);
    const done = known.done + 1;
    if (this.#hasRisen(loss, observation.loss))
      return this.#with({
        ...known,
        done,
        backTo: known.good,
        spent: known.goodSpent,
        share: known.share * SETBACK,
        loss: new Average(),
      });
    const level = loss.mean + RISE * loss.error;
    const isBetter = this.#isComparable(loss) && level < known.lowest;
    let { measured, curvature, start } = known;
    if (observation.curvature !== null && Number.isFinite(observation.curvature)) {
      const { directions } = observation;
      curvature = curvature.after(observation.curvature, MEMORY * directions, directions);
      measured += directions;
    }
    const isEarly = this.isWarmingUp || start.count < this.#memory / 2;
    if (isAtStart || (this.#given === null && isEarly))
      start = start.after(observation.loss, Infinity);
    const after = this.#with({
      ...known,
      done,
      backTo: null,
      good: isBetter ? known.done : known.good,
      goodSpent: isBetter ? known.spent : known.goodSpent,
      lowest: isBetter ? level : known.lowest,
      start,
      loss,
      curvature,
      measured,
      meanSquare: known.meanSquare.after(observation.meanSquare, this.#memory),
      squaredNorm: known.squaredNorm.after(observation.squaredNorm, this.#memory),
    });
    const price =
      0.5 * after.#curvature * observation.learningRate ** 2 * observation.squaredNorm;
    return this.#with({ ...after.#known, spent: known.spent + price });
  }

  /** The round whose state to return to because the last round showed a rise; otherwise null. */
  get backTo(): number | null {
    return this.#known.backTo;
  }

  /** The η of the next round; 0 during the warm-up. */
  get learningRate(): number {
    const { share, done, spent, start, squaredNorm } = this.#known;
    if (this.#given !== null) return this.#given * share;
    if (this.isWarmingUp || squaredNorm.mean <= 0 || this.#curvature <= 0) return 0;
    const scale = Math.abs(start.mean);
    const budget = share * Math.max(FIRST_SHARE * scale, GAIN_SHARE * this.#gain);
    const left = Math.max(this.#rounds - done, LEAST_LEFT * this.#rounds, 1);
    const price = Math.max(budget - spent, LEAST_SHARE * budget) / left;
    const most = share * MOST_AT_ONCE * scale;
    const norm = Math.max(squaredNorm.mean, 1e-300);
    const square = Math.min(Math.min(price, most) / squaredNorm.mean, most / norm);
    const rate = Math.sqrt((2 * square) / this.#curvature);
    return Math.min(rate, (REACH * this.#epsilon) / Math.sqrt(norm));
  }

  /** The limit on the next projected gradients' absolute values; 0 means none. */
  get clip(): number {
    if (this.#given !== null || this.isWarmingUp) return 0;
    return OUTLIER * Math.sqrt(this.#known.meanSquare.mean);
  }

  /** Whether curvature is not yet known well enough for an update. */
  get isWarmingUp(): boolean {
    const { measured, done } = this.#known;
    if (this.#given !== null || measured >= WARM_UP) return false;
    return !measured || done < WARM_UP_SHARE * this.#rounds;
  }

  /** Returns the interval, in steps, between steps that measure curvature; 0 means none. */
  curvatureEvery(queries: number, differences: string): number {
    if (this.#given !== null) return 0;
    return this.isWarmingUp ? 1 : curvatureInterval(queries, differences);
  }

  get #curvature(): number {
    const { mean, error } = this.#known.curvature;
    return error ? Math.max(mean, error) : Math.abs(mean);
  }

  get #gain(): number {
    const { start, loss } = this.#known;
    if (!this.#isComparable(loss)) return 0;
    return Math.max(0, start.mean - loss.mean - Math.hypot(start.error, loss.error));
  }

  get #memory(): number {
    return Math.min(Math.max(this.#rounds / 10, 4), MEMORY);
  }

  #hasRisen(average: Average, latest: number): boolean {
    const { done, start, lowest } = this.#known;
    if (done === 0) return false;
    const scale = Math.max(Math.abs(start.mean), LEAST_SCALE);
    if (!(latest <= Math.min(lowest, start.mean) + AT_ONCE * scale)) return true;
    const error = Math.sqrt(average.variance / Math.max(start.count, 1));
    const least = Math.min(lowest, start.mean + RISE * error);
    const margin = RISE * average.error + LEAST_RISE * scale;
    return this.#isComparable(average) && average.mean > least + margin;
  }

  #isComparable(average: Average): boolean {
    return average.count >= Math.min(FEWEST, this.#memory);
  }

  #with(known: Known): StepSize {
    return new StepSize(this.#rounds, this.#given, this.#epsilon, known);
  }
}

/** Returns the interval, in steps, between steps that measure curvature after the warm-up. */
export function curvatureInterval(queries: number, differences: string): number {
  if (differences === "forward") return CURVATURE_SHARE;
  return Math.max(1, Math.floor(CURVATURE_SHARE / queries));
}

/** Returns the step size of clients' own updates of which they report components. */
export function componentRate(layout: Layout, rounds: number, queries: number): number {
  const rows = layout.tensors.map((one) => (one.group === GROUP.readout ? one.rows : 0));
  const labels = 1 + rows.reduce((sum, one) => sum + one, 0);
  return (((COMPONENT_TIME * labels) / 2) * layout.size) / (rounds * queries);
}
