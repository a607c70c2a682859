/** Values of a run's settings from other parties; each value is validated when it is read. */

import { SettingsError } from "./errors.ts";
import { TERMS, type Term, type TermKey } from "./term-settings.ts";

const MAX_SETTINGS_BYTES = 2 ** 16;
const MAX_SEED = 2n ** 63n;
const MAX_WHOLE = 2 ** 32 - 1;

/**
 * The settings of a run by dotted key; every read throws `SettingsError` if the value is invalid.
 */
export class SettingValues {
  readonly #text: string;
  readonly #settings: Readonly<Record<string, unknown>>;

  /** @param settings sorted JSON. */
  constructor(settings: Uint8Array) {
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
    this.#settings = { ...given };
  }

  /** Returns a setting without validation, or its default. */
  value(key: TermKey): unknown {
    const term: Term = TERMS[key];
    return key in this.#settings ? this.#settings[key] : term.default;
  }

  /** Returns a text setting; it must be a known value if the table lists them. */
  text(key: TermKey): string {
    const value = this.value(key);
    const { words, pattern }: Term = TERMS[key];
    if (typeof value !== "string") throw new SettingsError(`${key} is not a text`);
    if ((words && !words.includes(value)) || (pattern && !new RegExp(pattern).test(value)))
      throw new SettingsError(`${key}: ${value} is unknown here`);
    return value;
  }

  /** Returns a boolean setting. */
  flag(key: TermKey): boolean {
    const value = this.value(key);
    if (typeof value !== "boolean") throw new SettingsError(`${key} is neither true nor false`);
    return value;
  }

  /**
   * Returns an integer setting within its range.
   *
   * @param most the maximum, if the range leaves it open.
   */
  whole(key: TermKey, most = MAX_WHOLE): number {
    const value = this.#inRange(key, most);
    if (!Number.isInteger(value)) throw new SettingsError(`${key} is not a whole number`);
    return value;
  }

  /** Returns a finite number setting within its range. */
  number(key: TermKey): number {
    return this.#inRange(key, Number.MAX_VALUE);
  }

  /** Returns a step size; null if it is estimated. */
  rate(key: TermKey): number | null {
    return this.value(key) === "auto" ? null : this.number(key);
  }

  #inRange(key: TermKey, open: number): number {
    const value = this.value(key);
    const { least = 0, most = open, above = false }: Term = TERMS[key];
    if (typeof value !== "number" || !(above ? value > least : value >= least) || value > most)
      throw new SettingsError(`${key} is not a number ${above ? "above" : "from"} ${least} to ${most}`);
    return value;
  }

  /** Returns the seed, which has up to 63 bits; `JSON.parse` would keep only 53. */
  seed(): bigint {
    const digits = /[{,] ?"seed": ?(\d{1,19})[,}]/.exec(this.#text)?.[1];
    const seed = digits === undefined ? MAX_SEED : BigInt(digits);
    if (seed >= MAX_SEED) throw new SettingsError("seed is not a whole number below 2^63");
    return seed;
  }
}
