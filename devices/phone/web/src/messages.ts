/**
 * The messages of the stream between phone and gateway: `ToPhone` is read, `FromPhone` written.
 *
 * They are those of shared/proto/trainer.proto in protobuf's encoding. As protobuf requires,
 * unknown fields are skipped, and the last occurrence of a repeated field counts.
 */

import { concat, toUtf8, type Bytes } from "./bytes.ts";
import { FrameError } from "./errors.ts";

export const TASK_KIND = { hello: 0, train: 1, evaluate: 2, blob: 3, refused: 4, mask: 5 } as const;

/** The first message on a stream. */
export interface Challenge {
  readonly version: number;
  readonly nonce: Bytes;
}

/** A request of the gateway; omitted fields are zero or empty. */
export interface Task {
  readonly number: number;
  readonly kind: number;
  readonly instruction: Bytes;
  readonly snapshot: Bytes;
  readonly tail: Bytes;
  readonly settings: Bytes;
  readonly personal: boolean;
  readonly shares: Bytes;
}

export type ToPhone = { readonly challenge: Challenge } | { readonly task: Task };

/** The answer to a challenge. */
export interface Proof {
  readonly publicKey: Bytes;
  readonly signature: Bytes;
}

/** The answer to a task. */
export interface TaskResult {
  readonly number: number;
  readonly frame: Bytes;
  readonly signature: Bytes;
}

const WIRE = { varint: 0, eightBytes: 1, bytes: 2, fourBytes: 5 } as const;
const MAX_VARINT_BYTES = 10;

/** The values of a message's fields by number; numbers and booleans are numbers, others bytes. */
type Fields = ReadonlyMap<number, number | Bytes>;

/** Reads a message of the gateway; throws `FrameError` if it is invalid or empty. */
export function decodeToPhone(message: Bytes): ToPhone {
  const fields = readFields(message);
  const task = fields.get(2);
  if (task !== undefined) return { task: readTask(readFields(asBytes(task))) };
  const challenge = fields.get(1);
  if (challenge === undefined) throw new FrameError("the message is neither challenge nor task");
  const inner = readFields(asBytes(challenge));
  return { challenge: { version: numberIn(inner, 1), nonce: bytesIn(inner, 2) } };
}

function readTask(fields: Fields): Task {
  return {
    number: numberIn(fields, 1),
    kind: numberIn(fields, 2),
    instruction: bytesIn(fields, 3),
    snapshot: bytesIn(fields, 4),
    tail: bytesIn(fields, 5),
    settings: bytesIn(fields, 7),
    personal: numberIn(fields, 8) !== 0,
    shares: bytesIn(fields, 9),
  };
}

/** Returns the message that proves a phone's identity. */
export function encodeProof(proof: Proof): Bytes {
  return bytesField(1, concat(bytesField(1, proof.publicKey), bytesField(2, proof.signature)));
}

/** Returns the message with the result of a task. */
export function encodeResult(result: TaskResult): Bytes {
  const number = concat(varint(8), varint(result.number));
  const rest = concat(bytesField(2, result.frame), bytesField(3, result.signature));
  return bytesField(2, concat(number, rest));
}

function bytesField(number: number, content: Bytes): Bytes {
  return concat(varint((number << 3) | WIRE.bytes), varint(content.length), content);
}

function varint(value: number): Bytes {
  const bytes: number[] = [];
  for (let left = value; ; left = Math.floor(left / 128)) {
    bytes.push((left % 128) + (left > 127 ? 128 : 0));
    if (left <= 127) return Uint8Array.from(bytes);
  }
}

function readFields(message: Bytes): Fields {
  const fields = new Map<number, number | Bytes>();
  let at = 0;
  const skip = (size: number): Bytes => {
    if (size > message.length - at) throw new FrameError("a message of the gateway is truncated");
    at += size;
    return message.slice(at - size, at);
  };
  const readVarint = (): number => {
    let value = 0;
    for (let index = 0; index < MAX_VARINT_BYTES; index++) {
      const [byte] = skip(1);
      value += (byte! & 127) * 2 ** (7 * index); // no field in use has values beyond 2⁵³
      if (byte! < 128) return value;
    }
    throw new FrameError("a number in a message of the gateway is too long");
  };
  while (at < message.length) {
    const key = readVarint();
    const [number, wire] = [Math.floor(key / 8), key % 8];
    if (wire === WIRE.varint) fields.set(number, readVarint());
    else if (wire === WIRE.bytes) fields.set(number, skip(readVarint()));
    else if (wire === WIRE.eightBytes) skip(8);
    else if (wire === WIRE.fourBytes) skip(4);
    else throw new FrameError(`a message of the gateway has a field of wire type ${wire}`);
  }
  return fields;
}

function asBytes(value: number | Bytes): Bytes {
  if (typeof value === "number") throw new FrameError("a message of the gateway has a wrong field");
  return value;
}

function bytesIn(fields: Fields, number: number): Bytes {
  return asBytes(fields.get(number) ?? toUtf8(""));
}

function numberIn(fields: Fields, number: number): number {
  const value = fields.get(number) ?? 0;
  if (typeof value !== "number")
    throw new FrameError("a message of the gateway has a wrong field");
  return value;
}
