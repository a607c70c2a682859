/** Tokens of texts, by the tokenizer that came with the program. */

import { ProgramError } from "./errors.ts";
import { Tokenizer } from "./library/tokenizers.mjs";
import { textOf, type ProgramIndex, type Row } from "./task.ts";

/** The tokens of an example: one sequence, or one for each candidate, padded by −1. */
export interface Tokens {
  readonly sequences: readonly (readonly number[])[];
  readonly position: number;
}

const WORD = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

/** Turns rows of the task into tokens. */
export class RowTokenizer {
  readonly #tokenizer: Tokenizer;
  readonly #index: ProgramIndex;

  /**
   * @param files the tokenizer's files by name, parsed.
   * @throws ProgramError if it does not give the tokens that the index has of its examples.
   */
  constructor(index: ProgramIndex, files: Readonly<Record<string, unknown>>) {
    this.#index = index;
    const tokenizer = structuredClone(files["tokenizer.json"]) as { pre_tokenizer: unknown };
    tokenizer.pre_tokenizer = withUnicodeWords(tokenizer.pre_tokenizer);
    this.#tokenizer = new Tokenizer(tokenizer, files["tokenizer_config.json"] ?? {});
    for (const { row, ids } of index.examples) {
      const found = this.#stem(row);
      if (found.length !== ids.length || found.some((token, at) => token !== ids[at]))
        throw new ProgramError("this browser's tokenizer makes other tokens than the program's");
    }
  }

  /** Returns the tokens of a row; a text that is too long is cut at its end. */
  tokens(row: Row): Tokens {
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
    return [...before, ...this.#encode(text + after, special)];
  }

  /** Returns the longest beginning of a text that has at most as many tokens as fit. */
  #fitting(text: string): string {
    const { limit } = this.#index.tokenization;
    if (this.#encode(text, false).length <= limit) return text;
    let [fits, isTooLong] = [0, text.length];
    while (isTooLong - fits > 1) {
      const middle = Math.floor((fits + isTooLong) / 2);
      if (this.#encode(text.slice(0, middle), false).length <= limit) fits = middle;
      else isTooLong = middle;
    }
    return text.slice(0, fits);
  }

  #encode(text: string, special: boolean): number[] {
    return this.#tokenizer.encode(text, { add_special_tokens: special }).ids;
  }
}

/** The library splits `Whitespace` at letters that are not ASCII, which the original does not. */
function withUnicodeWords(preTokenizer: unknown): unknown {
  if ((preTokenizer as { type?: string } | null)?.type !== "Whitespace") return preTokenizer;
  const pattern = { Regex: `[${WORD}]+|[^${WORD}\\s]+` };
  return { type: "Split", pattern, behavior: "Removed", invert: true };
}
