/** Frames that a client sends: hello, report, evaluation, refusal, receipt of a blob, round cost. */

import { Reader, Writer, type Bytes } from "./bytes.ts";
import { check, checkClient, KIND, MAX_SCALARS, pack, unpack } from "./wire.ts";

const MAX_GRADIENT = 1e6;
const MAX_CURVATURE = 1e12;
const MAX_LABELS = 1024;
const MAX_COLUMNS = 64;
const MAX_BLOB_BYTES = 256 * 2 ** 20;
const PART_BYTES = 4 * 2 ** 20;
const MAX_COST_SECONDS = 1e7;
const MAX_COST_JOULES = 1e9;

/** A client's introduction; layout and facts are JSON texts. */
export interface Hello {
  readonly client: number;
  readonly examples: number;
  readonly round: number;
  readonly modelId: Bytes;
  readonly layout: string;
  readonly facts: string;
}

/** Returns a hello as a frame. */
export function encodeHello(one: Hello): Bytes {
  const writer = new Writer().u32(one.client, one.examples, one.round).bytes(one.modelId);
  return pack(KIND.hello, writer.text(one.layout).text(one.facts).end());
}

/** Reads a hello; throws `FrameError` if it is invalid. */
export function decodeHello(frame: Bytes): Hello {
  const reader = unpack(frame, KIND.hello);
  const hello = {
    client: reader.u32(),
    examples: reader.u32(),
    round: reader.u32(),
    modelId: reader.bytes(32),
    layout: reader.text(),
    facts: reader.text(),
  };
  reader.end();
  checkClient(hello.client);
  return hello;
}

/**
 * A report on a round, with K·q projected gradients. With a pool it has one sum per used seed
 * instead; then `summedSteps` is K and `queries` 0. The curvature is null if no step measured it.
 */
export interface Report {
  readonly token: Bytes;
  readonly client: number;
  readonly examples: number;
  readonly meanLoss: number;
  readonly queries: number;
  readonly gradients: Float32Array<ArrayBuffer>;
  readonly summedSteps: number;
  readonly curvature: number | null;
}

/** Returns a report as a frame: 32 bytes and 4 per projected gradient. */
export function encodeReport(one: Report): Bytes {
  const writer = new Writer().bytes(one.token).u32(one.client, one.examples);
  const count = one.gradients.length;
  if (one.summedSteps) writer.u16(one.summedSteps).f32(one.meanLoss).u32(count);
  else writer.u16(count / one.queries, one.queries).f32(one.meanLoss);
  writer.array(one.gradients);
  if (one.curvature !== null) writer.f32(one.curvature);
  return pack(one.summedSteps ? KIND.reportOfSums : KIND.report, writer.end());
}

/** Reads a report; throws `FrameError` if it is invalid. */
export function decodeReport(frame: Bytes): Report {
  const reader = unpack(frame, KIND.report, KIND.reportOfSums);
  const areSums = frame[3] === KIND.reportOfSums;
  const start = { token: reader.bytes(8), client: reader.u32(), examples: reader.u32() };
  const steps = reader.u16();
  const queries = areSums ? 0 : reader.u16();
  const meanLoss = reader.f32();
  const count = areSums ? reader.u32() : steps * queries;
  check(steps >= 1 && count >= 1 && count <= MAX_SCALARS, `${count} scalars are out of range`);
  const gradients = new Float32Array(reader.bytes(4 * count).buffer);
  const curvature = reader.left ? reader.f32() : null;
  reader.end();
  checkClient(start.client);
  check(
    Math.abs(meanLoss) <= MAX_GRADIENT &&
      gradients.every((value) => Math.abs(value) <= MAX_GRADIENT) &&
      (curvature === null || Math.abs(curvature) <= MAX_CURVATURE),
    "a number in the report is not finite or too large",
  );
  return { ...start, meanLoss, queries, gradients, summedSteps: areSums ? steps : 0, curvature };
}

/** The loss and confusion counts of one model: rows are true labels, columns predictions. */
export interface EvaluationColumn {
  readonly name: string;
  readonly meanLoss: number;
  readonly counts: Uint32Array<ArrayBuffer>;
}

/** A client's answer to an evaluate instruction. */
export interface Evaluation {
  readonly token: Bytes;
  readonly client: number;
  readonly labels: number;
  readonly columns: readonly EvaluationColumn[];
}

/** Returns an evaluation as a frame. */
export function encodeEvaluation(one: Evaluation): Bytes {
  const writer = new Writer().bytes(one.token).u32(one.client);
  writer.u16(one.labels, one.columns.length);
  for (const column of one.columns)
    writer.text(column.name).f64(column.meanLoss).array(column.counts);
  return pack(KIND.evaluation, writer.end());
}

/** Reads an evaluation; throws `FrameError` if it is invalid. */
export function decodeEvaluation(frame: Bytes): Evaluation {
  const reader = unpack(frame, KIND.evaluation);
  const start = { token: reader.bytes(8), client: reader.u32(), labels: reader.u16() };
  const { labels } = start;
  const count = reader.u16();
  check(
    labels >= 1 && labels <= MAX_LABELS && count >= 1 && count <= MAX_COLUMNS,
    "the evaluation is out of range",
  );
  const columns = Array.from({ length: count }, () => readColumn(reader, labels));
  reader.end();
  check(
    columns.every((column) => Number.isFinite(column.meanLoss)),
    "a loss in the evaluation is not finite",
  );
  check(
    new Set(columns.map((column) => column.name)).size === count,
    "the evaluation names a column twice",
  );
  return { ...start, columns };
}

function readColumn(reader: Reader, labels: number): EvaluationColumn {
  const [name, meanLoss] = [reader.text(), reader.f64()];
  return { name, meanLoss, counts: new Uint32Array(reader.bytes(4 * labels * labels).buffer) };
}

/** A client's refusal of an instruction; docs/reference/wire.md lists the codes. */
export interface Refusal {
  readonly token: Bytes;
  readonly client: number;
  readonly round: number;
  readonly code: number;
  readonly numbers: readonly [number, number];
}

/** Returns a refusal as a frame. */
export function encodeRefusal(one: Refusal): Bytes {
  const writer = new Writer().bytes(one.token).u32(one.client, one.round).u16(one.code);
  return pack(KIND.refusal, writer.u32(...one.numbers).end());
}

/** Reads a refusal; throws `FrameError` if it is invalid. */
export function decodeRefusal(frame: Bytes): Refusal {
  const reader = unpack(frame, KIND.refusal);
  const refusal = {
    token: reader.bytes(8),
    client: reader.u32(),
    round: reader.u32(),
    code: reader.u16(),
    numbers: [reader.u32(), reader.u32()] as const,
  };
  reader.end();
  checkClient(refusal.client);
  return refusal;
}

/** A part of a file from the server, which clients need once. */
export interface BlobPart {
  readonly blob: Bytes;
  readonly size: number;
  readonly offset: number;
  readonly content: Bytes;
}

/** Returns a part of a blob as a frame. */
export function encodeBlobPart(one: BlobPart): Bytes {
  const writer = new Writer().bytes(one.blob).u32(one.size, one.offset, one.content.length);
  return pack(KIND.blobPart, writer.bytes(one.content).end());
}

/** Reads a part of a blob; throws `FrameError` if it is invalid. */
export function decodeBlobPart(frame: Bytes): BlobPart {
  const reader = unpack(frame, KIND.blobPart);
  const start = { blob: reader.bytes(32), size: reader.u32(), offset: reader.u32() };
  const length = reader.u32();
  check(
    length >= 1 &&
      length <= PART_BYTES &&
      start.offset + length <= start.size &&
      start.size <= MAX_BLOB_BYTES,
    "a part of a blob is out of range",
  );
  const content = reader.bytes(length);
  reader.end();
  return { ...start, content };
}

/** A client's answer to a part: the number of bytes of the blob that it has, from the start. */
export interface BlobReceipt {
  readonly token: Bytes;
  readonly client: number;
  readonly blob: Bytes;
  readonly received: number;
}

/** Returns a receipt as a frame. */
export function encodeBlobReceipt(one: BlobReceipt): Bytes {
  const writer = new Writer().bytes(one.token).u32(one.client).bytes(one.blob);
  return pack(KIND.blobReceipt, writer.u32(one.received).end());
}

/** Reads a receipt; throws `FrameError` if it is invalid. */
export function decodeBlobReceipt(frame: Bytes): BlobReceipt {
  const reader = unpack(frame, KIND.blobReceipt);
  const receipt = {
    token: reader.bytes(8),
    client: reader.u32(),
    blob: reader.bytes(32),
    received: reader.u32(),
  };
  reader.end();
  checkClient(receipt.client);
  check(receipt.received <= MAX_BLOB_BYTES, "the receipt has more bytes than a blob can have");
  return receipt;
}

/** The cost of answering a train instruction: seconds, seconds of pauses among them, and joules. */
export interface RoundCost {
  readonly token: Bytes;
  readonly client: number;
  readonly seconds: number;
  readonly paused: number;
  readonly joules: number;
}

/** Returns a round cost as a frame. */
export function encodeRoundCost(one: RoundCost): Bytes {
  const writer = new Writer().bytes(one.token).u32(one.client);
  return pack(KIND.roundCost, writer.f32(one.seconds, one.paused, one.joules).end());
}

/** Reads a round cost; throws `FrameError` if it is invalid. */
export function decodeRoundCost(frame: Bytes): RoundCost {
  const reader = unpack(frame, KIND.roundCost);
  const cost = {
    token: reader.bytes(8),
    client: reader.u32(),
    seconds: reader.f32(),
    paused: reader.f32(),
    joules: reader.f32(),
  };
  reader.end();
  checkClient(cost.client);
  check(
    cost.paused >= 0 &&
      cost.paused <= cost.seconds &&
      cost.seconds <= MAX_COST_SECONDS &&
      cost.joules >= 0 &&
      cost.joules <= MAX_COST_JOULES,
    "the round cost is out of range",
  );
  return cost;
}
