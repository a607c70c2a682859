/** A phone's key, which never leaves the browser, and its signatures: ECDSA with SHA-256, DER. */

import { concat, sha256, toUtf8, type Bytes } from "./bytes.ts";

const CURVE = { name: "ECDSA", namedCurve: "P-256" } as const;
const SIGNING = { name: "ECDSA", hash: "SHA-256" } as const;
const CLIENTS = 2 ** 32 - 1;

/** A key pair whose private half cannot be read, with its public half as PEM. */
export interface OwnKey {
  readonly pair: CryptoKeyPair;
  readonly publicPem: Bytes;
}

/** Makes a key; its private half can sign, and cannot be exported. */
export async function makeKey(): Promise<OwnKey> {
  const pair = await crypto.subtle.generateKey(CURVE, false, ["sign", "verify"]);
  const spki = new Uint8Array(await crypto.subtle.exportKey("spki", pair.publicKey));
  const lines = btoa(String.fromCharCode(...spki)).match(/.{1,64}/g)!;
  const pem = ["-----BEGIN PUBLIC KEY-----", ...lines, "-----END PUBLIC KEY-----", ""];
  return { pair, publicPem: toUtf8(pem.join("\n")) };
}

/** Returns the signature of pieces of bytes, DER. */
export async function sign(key: OwnKey, ...pieces: readonly Bytes[]): Promise<Bytes> {
  const signature = await crypto.subtle.sign(SIGNING, key.pair.privateKey, concat(...pieces));
  return toDer(new Uint8Array(signature));
}

/** Returns the bytes that a phone signs to prove that it holds its key. */
export function proofBytes(nonce: Bytes): Bytes {
  return concat(toUtf8("samara phone 1\0"), nonce);
}

/** Returns the bytes that a phone signs so that a frame is its answer to an instruction. */
export async function answerBytes(instruction: Bytes, frame: Bytes): Promise<Bytes> {
  return concat(toUtf8("samara answer 1\0"), await sha256(instruction), frame);
}

/** Returns the index of the client that holds a public key, PEM with its last newline. */
export async function clientIndex(publicPem: Bytes): Promise<number> {
  return new DataView((await sha256(publicPem)).buffer).getUint32(0, true) % CLIENTS;
}

/** Returns a signature r‖s as DER: a sequence of two integers without needless leading zeros. */
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
