/**
 * The layout: the tensors that the trained numbers belong to. Its hash is that of its JSON text.
 */

import { sha256, toUtf8, type Bytes } from "./bytes.ts";
import { LedgerError } from "./errors.ts";
import { TABLE_SHA256 } from "./normal-table.ts";
import { MAX_ORTHOGONAL, type Distribution } from "./philox.ts";

const FORMAT_VERSION = 1;
const MAX_ELEMENTS = 2 ** 30;
const MAX_BASIS_SIZE = 1024;
const ADAPTER_GROUP = "adapter";

/** One trained tensor. */
export interface Tensor {
  readonly name: string;
  readonly rows: number;
  readonly columns: number;
  readonly group: string;
}

/** A layout, the number of elements of a state, and the layout's hash, which messages carry. */
export interface Layout {
  readonly text: string;
  readonly hash: Bytes;
  readonly tensors: readonly Tensor[];
  readonly distribution: Distribution;
  readonly size: number;
}

/** The groups of a readout's tensors: the matrix W, optionally followed by one number per label. */
export const GROUP = { readout: "readout", labelBias: "label bias" } as const;

/**
 * Returns the index at which a tensor group starts in a state without a basis; −1 if it is missing.
 */
export function firstOf(layout: Layout, group: string): number {
  let first = 0;
  for (const tensor of layout.tensors) {
    if (tensor.group === group) return first;
    first += tensor.rows * tensor.columns;
  }
  return -1;
}

interface Content {
  readonly format_version: number;
  readonly normal_table_sha256: string;
  readonly tensors: readonly Tensor[];
  readonly distribution: string;
  readonly basis?: { readonly size: number };
}

/**
 * Reads the canonical JSON of a layout from a `hello` or the program's manifest.
 *
 * Any other text of the same layout has another hash, so a run would refuse it.
 */
export async function readLayout(text: string): Promise<Layout> {
  const { tensors, distribution, basis } = checked(text);
  const numbers = (some: readonly Tensor[]): number =>
    some.reduce((sum, tensor) => sum + tensor.rows * tensor.columns, 0);
  const rest = basis ? tensors.filter((tensor) => tensor.group !== ADAPTER_GROUP) : tensors;
  const size = numbers(rest) + (basis ? basis.size : 0);
  if (distribution === "orthogonal" && size > MAX_ORTHOGONAL)
    throw new LedgerError(`orthogonal directions have no ${size} elements`);
  return { text, hash: await sha256(toUtf8(text)), tensors, distribution, size };
}

function checked(text: string): Content & { distribution: Distribution } {
  let content: Content;
  try {
    content = JSON.parse(text) as Content;
    const { tensors, basis } = content;
    const names = new Set(tensors.map((tensor) => tensor.name));
    const elements = tensors.reduce((sum, one) => sum + one.rows * one.columns, 0);
    const isSound =
      content.format_version === FORMAT_VERSION &&
      content.normal_table_sha256 === TABLE_SHA256 &&
      tensors.length > 0 &&
      names.size === tensors.length &&
      tensors.every((one) => isCount(one.rows) && isCount(one.columns)) &&
      elements <= MAX_ELEMENTS &&
      (basis === undefined || (isCount(basis.size) && basis.size <= MAX_BASIS_SIZE));
    if (!isSound) throw new Error("it is out of range, or of another format version or table");
  } catch (error) {
    throw new LedgerError(`not a layout: ${(error as Error).message}`);
  }
  const { distribution } = content;
  if (!isDistribution(distribution))
    throw new LedgerError(`the layout's distribution ${distribution} is unknown`);
  return { ...content, distribution };
}

function isDistribution(name: string): name is Distribution {
  return name === "gaussian" || name === "rademacher" || name === "orthogonal";
}

function isCount(value: number): boolean {
  return Number.isInteger(value) && value >= 1;
}
