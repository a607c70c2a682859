/** Bytes: text, hexadecimal, hashes, and reading and writing little-endian fields. */

import { FrameError } from "./errors.ts";

export type Bytes = Uint8Array<ArrayBuffer>;

const MAX_TEXT_BYTES = 2 ** 20;

/** Returns bytes as lower-case hexadecimal digits. */
export function toHex(bytes: Bytes): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Returns the bytes of hexadecimal digits. */
export function fromHex(digits: string): Bytes {
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

/** Returns a text as UTF-8. */
export function toUtf8(text: string): Bytes {
  return new TextEncoder().encode(text);
}

/** Returns whether two byte arrays are equal. */
export function areEqual(one: Bytes, other: Bytes): boolean {
  return one.length === other.length && one.every((byte, index) => byte === other[index]);
}

/** Returns the concatenation of byte arrays. */
export function concat(...pieces: readonly Bytes[]): Bytes {
  return joined(pieces);
}

/**
 * Returns the concatenation of byte arrays, of which there may be more than a call has arguments.
 */
function joined(pieces: readonly Bytes[]): Bytes {
  const whole = new Uint8Array(pieces.reduce((length, piece) => length + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

/** Returns the bytes of an array of numbers; every browser's processor is little-endian. */
export function bytesOf(numbers: ArrayBufferView<ArrayBuffer>): Bytes {
  return new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength);
}

/** Returns the SHA-256 of concatenated byte arrays, 32 bytes. */
export async function sha256(...pieces: readonly Bytes[]): Promise<Bytes> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", concat(...pieces)));
}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, index) => {
  let value = index;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

/** Returns the CRC-32 of concatenated byte arrays, as computed by zlib. */
export function crc32(...pieces: readonly Bytes[]): number {
  let value = 0xffffffff;
  for (const piece of pieces)
    for (const byte of piece) value = CRC_TABLE[(value ^ byte) & 0xff]! ^ (value >>> 8);
  return (value ^ 0xffffffff) >>> 0;
}

/** A writer of little-endian fields. */
export class Writer {
  readonly #pieces: Bytes[] = [];

  /** Appends bytes. */
  bytes(piece: Bytes): this {
    this.#pieces.push(piece);
    return this;
  }

  /** Appends unsigned integers of 8, 16 or 32 bits. */
  u8(...values: number[]): this {
    return this.bytes(Uint8Array.from(values));
  }

  u16(...values: number[]): this {
    return this.bytes(bytesOf(Uint16Array.from(values)));
  }

  u32(...values: number[]): this {
    return this.bytes(bytesOf(Uint32Array.from(values)));
  }

  /** Appends an unsigned integer of 64 bits. */
  u64(value: bigint): this {
    return this.bytes(bytesOf(BigUint64Array.of(value)));
  }

  /** Appends floating-point numbers of 32 or 64 bits. */
  f32(...values: number[]): this {
    return this.bytes(bytesOf(Float32Array.from(values)));
  }

  f64(...values: number[]): this {
    return this.bytes(bytesOf(Float64Array.from(values)));
  }

  /** Appends an array of numbers. */
  array(numbers: ArrayBufferView<ArrayBuffer>): this {
    return this.bytes(bytesOf(numbers));
  }

  /** Appends a text as its length (u32) and its UTF-8 bytes. */
  text(value: string): this {
    const bytes = toUtf8(value);
    return this.u32(bytes.length).bytes(bytes);
  }

  /** Returns everything that was appended. */
  end(): Bytes {
    return joined(this.#pieces);
  }
}

/** A reader of little-endian fields, which throws `FrameError` on reading past the end. */
export class Reader {
  readonly #view: DataView<ArrayBuffer>;
  #at = 0;

  constructor(body: Bytes) {
    this.#view = new DataView(body.buffer, body.byteOffset, body.byteLength);
  }

  /** The number of bytes that have not been read. */
  get left(): number {
    return this.#view.byteLength - this.#at;
  }

  #skip(size: number): number {
    if (size > this.left)
      throw new FrameError(`the frame is truncated: ${size} more bytes were announced`);
    const start = this.#at;
    this.#at += size;
    return start;
  }

  /** Returns a copy of the next bytes, so that typed arrays can be laid over it. */
  bytes(size: number): Bytes {
    const start = this.#skip(size) + this.#view.byteOffset;
    return new Uint8Array(this.#view.buffer.slice(start, start + size));
  }

  u8(): number {
    return this.#view.getUint8(this.#skip(1));
  }

  u16(): number {
    return this.#view.getUint16(this.#skip(2), true);
  }

  u32(): number {
    return this.#view.getUint32(this.#skip(4), true);
  }

  u64(): bigint {
    return this.#view.getBigUint64(this.#skip(8), true);
  }

  f32(): number {
    return this.#view.getFloat32(this.#skip(4), true);
  }

  f64(): number {
    return this.#view.getFloat64(this.#skip(8), true);
  }

  /** Returns the next text. */
  text(): string {
    const size = this.u32();
    if (size > MAX_TEXT_BYTES) throw new FrameError(`a text of ${size} bytes is too long`);
    const bytes = this.bytes(size);
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      throw new FrameError("a text in the frame is not UTF-8");
    }
  }

  /** Throws an error if bytes remain after the last field. */
  end(): void {
    if (this.left) throw new FrameError(`${this.left} bytes follow the end of the frame`);
  }
}
