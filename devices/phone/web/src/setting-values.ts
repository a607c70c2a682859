/** Values of a run's settings, which others sent, checked one by one. */

import { SettingsError } from "./errors.ts";

const MAX_SETTINGS_BYTES = 2 ** 16;
const MAX_SEED = 2n ** 63n;

/** The settings of a run by dotted key; every read throws `SettingsError` unless it succeeds. */
export class SettingValues {
  readonly #text: string;
  readonly #settings: Readonly<Record<string, unknown>>;

  /**
   * @param settings sorted JSON.
   * @param defaults values of settings that may be missing.
   */
  constructor(settings: Uint8Array, defaults: Readonly<Record<string, unknown>>) {
    if (settings.length > MAX_SETTINGS_BYTES)
      throw new SettingsError(`the run's settings have over ${MAX_SETTINGS_BYTES} bytes`);
    this.#text = new TextDecoder().decode(settings);
    let given: unknown;
    try {
      given = JSON.parse(this.#text);
    } catch {
      given = null;
    }
    if (given === null || typeof given !== "object")
      throw new SettingsError("the run's settings are not a JSON object");
    this.#settings = { ...defaults, ...given };
  }

  /** Returns a setting as it is. */
  value(key: string): unknown {
    return this.#settings[key];
  }

  /** Returns a setting that is a text. */
  text(key: string): string {
    const value = this.#settings[key];
    if (typeof value !== "string") throw new SettingsError(`${key} is no text`);
    return value;
  }

  /** Returns a setting that is true or false. */
  flag(key: string): boolean {
    const value = this.#settings[key];
    if (typeof value !== "boolean") throw new SettingsError(`${key} is neither true nor false`);
    return value;
  }

  /** Returns a setting that is a whole number in a range. */
  whole(key: string, least = 0, most = 2 ** 32 - 1): number {
    const value = this.#settings[key];
    if (!Number.isInteger(value) || !((value as number) >= least && (value as number) <= most))
      throw new SettingsError(`${key} is no whole number from ${least} to ${most}`);
    return value as number;
  }

  /** Returns a setting that is a number from 0 on. */
  number(key: string): number {
    const value = this.#settings[key];
    if (typeof value !== "number" || !(value >= 0 && Number.isFinite(value)))
      throw new SettingsError(`${key} is no number from 0 on`);
    return value;
  }

  /** Returns a step size; null if it is estimated. */
  rate(key: string): number | null {
    return this.#settings[key] === "auto" ? null : this.number(key);
  }

  /** Returns the seed, which has up to 63 bits, of which `JSON.parse` keeps 53. */
  seed(): bigint {
    const digits = /[{,] ?"seed": ?(\d{1,19})[,}]/.exec(this.#text)?.[1];
    const seed = digits === undefined ? MAX_SEED : BigInt(digits);
    if (seed >= MAX_SEED) throw new SettingsError("seed is no whole number below 2^63");
    return seed;
  }
}
