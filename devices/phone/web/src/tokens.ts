/** Tokens of texts, computed by the program's tokenizer. */

import { PlainError, ProgramError } from "./errors.ts";
import { Tokenizer } from "./library/tokenizers.mjs";
import { textOf, type ProgramIndex, type Row } from "./task.ts";

/** The tokens of an example: one sequence, or one per candidate, padded with −1. */
export interface Tokens {
  readonly sequences: readonly (readonly number[])[];
  readonly position: number;
}

/** Letters per token for a first cut of longer texts; shorter texts are tokenized completely. */
const LETTERS_PER_TOKEN = 16;
const WORD = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

/** Turns rows of the task into tokens. */
export class RowTokenizer {
  readonly #tokenizer: Tokenizer;
  readonly #index: ProgramIndex;

  /**
   * @param files the tokenizer's files by name, parsed.
   * @throws ProgramError if the tokens of the index's examples do not match.
   */
  constructor(index: ProgramIndex, files: Readonly<Record<string, unknown>>) {
    this.#index = index;
    const tokenizer = structuredClone(files["tokenizer.json"]) as { pre_tokenizer: unknown };
    tokenizer.pre_tokenizer = withUnicodeWords(tokenizer.pre_tokenizer);
    this.#tokenizer = new Tokenizer(tokenizer, files["tokenizer_config.json"] ?? {});
    for (const { row, ids } of index.examples) {
      const found = this.#stem(row);
      if (found.length !== ids.length || found.some((token, at) => token !== ids[at]))
        throw new ProgramError("this browser's tokenizer makes tokens that differ from the program's");
    }
  }

  /**
   * Returns the tokens of a row; a text that is too long is truncated.
   *
   * @throws PlainError if the tokenizer cannot encode the text.
   */
  tokens(row: Row): Tokens {
    try {
      return this.#tokens(row);
    } catch (error) {
      console.warn("a text is not read:", (error as Error).message);
      throw new PlainError("unreadable");
    }
  }

  #tokens(row: Row): Tokens {
    const { answers } = this.#index.tokenization;
    const stem = this.#stem(row);
    const position = stem.length - 1;
    if (!answers.length) return { sequences: [stem], position };
    const longest = Math.max(...answers.map((answer) => answer.length));
    const padding = (answer: readonly number[]): number[] =>
      new Array<number>(longest - answer.length).fill(-1);
    const sequences = answers.map((answer) => [...stem, ...answer, ...padding(answer)]);
    return { sequences, position };
  }

  #stem(row: Row): number[] {
    const { special, before, after } = this.#index.tokenization;
    const text = this.#fitting(textOf(this.#index.task, row));
    const stem =
      typeof before === "string"
        ? this.#encode(before + text.trim() + after, special)
        : [...before, ...this.#encode(text + after, special)];
    if (!stem.length) throw new Error("the text has no token");
    return stem;
  }

  /** Returns the longest prefix of a text that does not exceed the token limit. */
  #fitting(text: string): string {
    const { limit } = this.#index.tokenization;
    const isFitting = (length: number): boolean =>
      this.#encode(text.slice(0, length), false).length <= limit;
    let [fits, isTooLong] = [0, LETTERS_PER_TOKEN * limit];
    while (isTooLong < text.length && isFitting(isTooLong)) isTooLong *= 2;
    if (isTooLong >= text.length) {
      if (isFitting(text.length)) return text;
      isTooLong = text.length;
    }
    while (isTooLong - fits > 1) {
      const middle = Math.floor((fits + isTooLong) / 2);
      if (isFitting(middle)) fits = middle;
      else isTooLong = middle;
    }
    return text.slice(0, fits);
  }

  #encode(text: string, special: boolean): number[] {
    const { ids } = this.#tokenizer.encode(text, { add_special_tokens: special });
    // a vocabulary without an unknown token gives an unknown letter no id
    if (!ids.every(Number.isSafeInteger)) throw new Error("the vocabulary lacks a token");
    return ids;
  }
}

/**
 * Corrects the library's `Whitespace` splitting, which differs from the original at non-ASCII
 * letters.
 */
function withUnicodeWords(preTokenizer: unknown): unknown {
  if ((preTokenizer as { type?: string } | null)?.type !== "Whitespace") return preTokenizer;
  const pattern = { Regex: `[${WORD}]+|[^${WORD}\\s]+` };
  return { type: "Split", pattern, behavior: "Removed", invert: true };
}
