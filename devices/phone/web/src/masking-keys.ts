/**
 * Keys of a round of secure aggregation, and the masks and ciphertexts derived from them.
 *
 * ECDH on P-256, HKDF-SHA256, AES-256-GCM and AES-256-CTR, all from WebCrypto
 * (shared/protocol/secure_aggregation/keys.py). A key of two clients is bound to both and to the list of
 * clients that both were given.
 */

import { bytesOf, concat, sha256, toUtf8, type Bytes } from "./bytes.ts";
import { MaskingError } from "./errors.ts";
import { indexBytes } from "./neighbours.ts";
import type { PlainVector } from "./vector.ts";

const CURVE = { name: "ECDH", namedCurve: "P-256" } as const;
const NONCE_BYTES = 12;

/** The purposes of keys agreed between two clients. */
export type Purpose = "shares" | "mask";

/** A key pair for one round, with its private number as 32 little-endian bytes. */
export interface RoundKey {
  readonly key: CryptoKey;
  readonly point: Bytes;
  readonly secret: Bytes;
}

/** Creates a key pair for one round, whose private number can be shared. */
export async function makeRoundKey(): Promise<RoundKey> {
  const pair = await crypto.subtle.generateKey(CURVE, true, ["deriveBits"]);
  const { d } = await crypto.subtle.exportKey("jwk", pair.privateKey);
  const base64 = d!.replace(/-/g, "+").replace(/_/g, "/");
  const secret = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0)).reverse();
  const point = new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
  return { key: pair.privateKey, point, secret };
}

/**
 * Returns the key agreed from a private key and another client's public key, 32 bytes.
 *
 * @throws MaskingError if the public key is not a point on P-256.
 */
export async function agree(
  own: CryptoKey,
  point: Bytes,
  purpose: Purpose,
  pair: Bytes,
): Promise<Bytes> {
  const other = await crypto.subtle.importKey("raw", point, CURVE, false, []).catch(() => {
    throw new MaskingError("a public key is not a point on P-256");
  });
  const shared = await crypto.subtle.deriveBits({ name: "ECDH", public: other }, own, 256);
  const base = await crypto.subtle.importKey("raw", shared, "HKDF", false, ["deriveBits"]);
  const info = concat(toUtf8(`samara-masking-2\0${purpose}\0`), pair);
  const way = { name: "HKDF", hash: "SHA-256", salt: new Uint8Array(), info };
  return new Uint8Array(await crypto.subtle.deriveBits(way, base, 256));
}

/** Returns the digest of a list of clients, to which keys and signatures are bound. */
export async function digestOfClients(token: Bytes, clients: readonly number[]): Promise<Bytes> {
  return sha256(toUtf8("samara-clients-1\0"), token, bytesOf(Uint32Array.from(clients)));
}

/** Returns the context of a key between two clients of a list, independent of their order. */
export function pairOf(clientsDigest: Bytes, one: number, other: number): Bytes {
  const [first, second] = [Math.min(one, other), Math.max(one, other)];
  return concat(clientsDigest, indexBytes(first), indexBytes(second));
}

/** Returns the hash that commits to a seed. */
export async function commitTo(seed: Bytes): Promise<Bytes> {
  return sha256(toUtf8("samara-seed-1\0"), seed);
}

/** Returns a ciphertext that only its receiver can read, and only in its round. */
export async function seal(
  bytes: Bytes,
  content: Bytes,
  sender: number,
  receiver: number,
  token: Bytes,
  nonce: Bytes = crypto.getRandomValues(new Uint8Array(NONCE_BYTES)),
): Promise<Bytes> {
  const key = await crypto.subtle.importKey("raw", bytes, "AES-GCM", false, ["encrypt"]);
  const way = sealing(nonce, sender, receiver, token);
  return concat(nonce, new Uint8Array(await crypto.subtle.encrypt(way, key, content)));
}

/** Returns the plain text of a ciphertext; null if it is forged, or for another round or client. */
export async function unseal(
  bytes: Bytes,
  sealed: Bytes,
  sender: number,
  receiver: number,
  token: Bytes,
): Promise<Bytes | null> {
  const key = await crypto.subtle.importKey("raw", bytes, "AES-GCM", false, ["decrypt"]);
  const way = sealing(sealed.slice(0, NONCE_BYTES), sender, receiver, token);
  return crypto.subtle.decrypt(way, key, sealed.slice(NONCE_BYTES)).then(
    (content) => new Uint8Array(content),
    () => null,
  );
}

function sealing(iv: Bytes, sender: number, receiver: number, token: Bytes): AesGcmParams {
  const additionalData = concat(token, indexBytes(sender), indexBytes(receiver));
  return { name: "AES-GCM", iv, additionalData };
}

/** Returns the mask generated from a key: AES-256 in counter mode from 0. */
export async function maskStream(
  bytes: Bytes,
  count: number,
): Promise<BigUint64Array<ArrayBuffer>> {
  const key = await crypto.subtle.importKey("raw", bytes, "AES-CTR", false, ["encrypt"]);
  const way = { name: "AES-CTR", counter: new Uint8Array(16), length: 128 };
  return new BigUint64Array(await crypto.subtle.encrypt(way, key, new Uint8Array(8 * count)));
}

/**
 * Returns a client's vector modulo 2⁶⁴ under its own mask and those shared with its neighbours.
 *
 * @param pairKeys the mask key shared with each neighbour.
 */
export async function maskVector(
  vector: PlainVector,
  client: number,
  seed: Bytes,
  pairKeys: ReadonlyMap<number, Bytes>,
): Promise<BigUint64Array<ArrayBuffer>> {
  const total = BigUint64Array.from(vector as Iterable<number | bigint>, BigInt);
  const own = await maskStream(seed, total.length);
  own.forEach((one, at) => (total[at]! += one)); // this array wraps modulo 2⁶⁴
  for (const [neighbour, key] of pairKeys) {
    const sign = client < neighbour ? 1n : -1n;
    const mask = await maskStream(key, total.length);
    mask.forEach((one, at) => (total[at]! += sign * one));
  }
  return total;
}
