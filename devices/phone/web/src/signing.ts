/** A phone's key, which never leaves the browser, and its signatures: ECDSA with SHA-256, DER. */

import { concat, sha256, toHex, toUtf8, type Bytes } from "./bytes.ts";

const CURVE = { name: "ECDSA", namedCurve: "P-256" } as const;
const SIGNING = { name: "ECDSA", hash: "SHA-256" } as const;
/** The curves of devices' and operators' keys, with the bytes of a coordinate. */
const CURVES = { "P-256": 32, "P-384": 48, "P-521": 66 } as const;
const PEM = /-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----/;
const CLIENTS = 2 ** 32 - 1;

/** A key pair whose private half cannot be exported, with its public half as PEM. */
export interface OwnKey {
  readonly pair: CryptoKeyPair;
  readonly publicPem: Bytes;
}

/** Creates a key whose private half can sign but cannot be exported. */
export async function makeKey(): Promise<OwnKey> {
  const pair = await crypto.subtle.generateKey(CURVE, false, ["sign", "verify"]);
  const spki = new Uint8Array(await crypto.subtle.exportKey("spki", pair.publicKey));
  const lines = btoa(String.fromCharCode(...spki)).match(/.{1,64}/g)!;
  const pem = ["-----BEGIN PUBLIC KEY-----", ...lines, "-----END PUBLIC KEY-----", ""];
  return { pair, publicPem: toUtf8(pem.join("\n")) };
}

/** Returns the signature of concatenated byte arrays, DER. */
export async function sign(key: OwnKey, ...pieces: readonly Bytes[]): Promise<Bytes> {
  const signature = await crypto.subtle.sign(SIGNING, key.pair.privateKey, concat(...pieces));
  return toDer(new Uint8Array(signature));
}

/** Returns the bytes that a phone signs to prove possession of its key. */
export function proofBytes(nonce: Bytes): Bytes {
  return concat(toUtf8("samara phone 1\0"), nonce);
}

/** Returns the bytes that a phone signs to mark a frame as its answer to an instruction. */
export async function answerBytes(instruction: Bytes, frame: Bytes): Promise<Bytes> {
  return concat(toUtf8("samara answer 1\0"), await sha256(instruction), frame);
}

/** Returns the index of the client with a public key, given as PEM with its final newline. */
export async function clientIndex(publicPem: Bytes): Promise<number> {
  return new DataView((await sha256(publicPem)).buffer).getUint32(0, true) % CLIENTS;
}

/** Another party's public key. */
export interface PublicKey {
  /** The key in a canonical form for comparison, in hexadecimal. */
  readonly spki: string;
  /** Returns whether a DER signature of some data was made with this key's private half. */
  isOf(signature: Bytes, data: Bytes): Promise<boolean>;
}

/** Reads a public key on an elliptic curve, PEM; null if it is invalid. */
export async function readPublicKey(pem: string): Promise<PublicKey | null> {
  const base64 = PEM.exec(pem)?.[1] ?? "";
  for (const [namedCurve, size] of Object.entries(CURVES))
    try {
      const given = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
      const curve = { name: "ECDSA", namedCurve };
      const key = await crypto.subtle.importKey("spki", given, curve, true, ["verify"]);
      const spki = toHex(new Uint8Array(await crypto.subtle.exportKey("spki", key)));
      const isOf = (signature: Bytes, data: Bytes): Promise<boolean> =>
        crypto.subtle.verify(SIGNING, key, fromDer(signature, size), data);
      return { spki, isOf };
    } catch {
      continue; // it is on another curve, or not a key
    }
  return null;
}

/** Returns a DER signature as r‖s, each as long as the curve's field. */
function fromDer(signature: Bytes, size: number): Bytes {
  const raw = new Uint8Array(2 * size);
  let at = signature[1]! > 0x7f ? 3 : 2;
  for (const end of [size, 2 * size]) {
    const length = signature[at + 1] ?? 0;
    const digits = signature.slice(at + 2, at + 2 + length).slice(-size);
    raw.set(digits, end - digits.length);
    at += 2 + length;
  }
  return raw;
}

/** Returns a signature r‖s as DER: a sequence of two integers without unnecessary leading zeros. */
export function toDer(signature: Bytes): Bytes {
  const size = signature.length / 2;
  const numbers = concat(integer(signature.slice(0, size)), integer(signature.slice(size)));
  return concat(Uint8Array.of(0x30, numbers.length), numbers);
}

function integer(field: Bytes): Bytes {
  const first = field.findIndex((byte) => byte !== 0);
  const digits = first < 0 ? field.slice(-1) : field.slice(first);
  const sign = digits[0]! > 0x7f ? [0] : [];
  return concat(Uint8Array.of(0x02, sign.length + digits.length, ...sign), digits);
}
