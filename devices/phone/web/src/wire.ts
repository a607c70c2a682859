/** The envelope of every frame: `SM`, format version, kind, CRC-32, body. */

import { concat, crc32, Reader, sha256, type Bytes } from "./bytes.ts";
import { FrameError } from "./errors.ts";

const FRAME_VERSION = 1;
const PREFIX_BYTES = 8;
const MAX_FRAME_BYTES = 64 * 2 ** 20;
const MAX_CLIENT = 2 ** 32 - 2;

/** The maximum number of scalars in a report or in a group of a round delta. */
export const MAX_SCALARS = 2 ** 20;

/** The kinds of frames that this client knows, by the frame's fourth byte. */
export const KIND = {
  hello: 1,
  train: 2,
  evaluate: 3,
  report: 4,
  evaluation: 6,
  roundDelta: 8,
  reportOfSums: 9,
  refusal: 10,
  blobPart: 11,
  blobReceipt: 12,
  roundCost: 13,
  vectorReport: 14,
  noisedVectorReport: 15,
  keyRequest: 16,
  maskingKeys: 17,
  keyList: 18,
  sealedShares: 19,
  maskedReport: 20,
  survivorList: 21,
  survivorSignature: 22,
  signatureList: 23,
  revealedShares: 24,
  bucketKeyList: 25,
} as const;

/** Returns a frame of a kind with a body. */
export function pack(kind: number, body: Bytes): Bytes {
  const start = Uint8Array.of(0x53, 0x4d, FRAME_VERSION, kind);
  const checksum = new Uint8Array(Uint32Array.of(crc32(start, body)).buffer);
  return concat(start, checksum, body);
}

/**
 * Returns a frame's kind after checking its prefix and checksum; throws `FrameError` if invalid.
 */
export function kindOf(frame: Bytes): number {
  if (frame.length < PREFIX_BYTES || frame.length > MAX_FRAME_BYTES)
    throw new FrameError(`a frame of ${frame.length} bytes is too short or too long`);
  const [s, m, version, kind] = frame;
  if (s !== 0x53 || m !== 0x4d) throw new FrameError("the bytes are not a frame");
  if (version !== FRAME_VERSION) throw new FrameError(`frame version ${version} is unknown`);
  const view = new DataView(frame.buffer, frame.byteOffset, frame.byteLength);
  if (view.getUint32(4, true) !== crc32(frame.subarray(0, 4), frame.subarray(PREFIX_BYTES)))
    throw new FrameError("the frame's checksum is wrong");
  return kind!;
}

/** Returns a reader of a frame's body; the frame must be of one of the given kinds. */
export function unpack(frame: Bytes, ...kinds: readonly number[]): Reader {
  const kind = kindOf(frame);
  if (!kinds.includes(kind)) throw new FrameError(`a frame of kind ${kind} was not expected`);
  return new Reader(frame.subarray(PREFIX_BYTES));
}

/** Returns the token of an instruction, 8 bytes, which ties an answer to it. */
export async function tokenOf(instruction: Bytes): Promise<Bytes> {
  return (await sha256(instruction)).slice(0, 8);
}

/** Throws `FrameError` with a complaint unless a condition of a valid frame holds. */
export function check(sound: boolean, complaint: string): void {
  if (!sound) throw new FrameError(complaint);
}

/** Throws `FrameError` if a client index from a frame is too large. */
export function checkClient(client: number): void {
  check(client <= MAX_CLIENT, `client index ${client} is over ${MAX_CLIENT}`);
}
