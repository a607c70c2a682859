/** Masking frames in the order of a round; docs/reference/wire.md documents their content. */

import { areEqual, concat, sha256, toUtf8, Writer, type Bytes, type Reader } from "./bytes.ts";
import { MOST_NEIGHBOURS } from "./neighbours.ts";
import { SHARE_BYTES } from "./secret-shares.ts";
import { check, checkClient, KIND, pack, unpack } from "./wire.ts";

const KEY_BYTES = 65;
const HASH_BYTES = 32;
const SEALED_BYTES = 2 * SHARE_BYTES + 28;
const MAX_CLIENTS = 2 ** 20;
const MAX_BYTES = 1024;

/** The server's request for the keys of a round. */
export interface KeyRequest {
  readonly token: Bytes;
}

/** Returns a key request as a frame. */
export function encodeKeyRequest({ token }: KeyRequest): Bytes {
  return pack(KIND.keyRequest, token);
}

/** Reads a key request; like the other readers, throws `FrameError` if it is invalid. */
export function decodeKeyRequest(frame: Bytes): KeyRequest {
  const reader = unpack(frame, KIND.keyRequest);
  const request = { token: reader.bytes(8) };
  reader.end();
  return request;
}

/** A client's fresh keys for a round, signed with its device's key. */
export interface MaskingKeys {
  readonly token: Bytes;
  readonly client: number;
  readonly sealingKey: Bytes;
  readonly maskKey: Bytes;
  readonly commitment: Bytes;
  readonly deviceKey: Bytes;
  readonly signature: Bytes;
}

/** Returns the signed bytes of keys; their hash is the digest of the keys. */
export function signedKeys(keys: Omit<MaskingKeys, "signature">): Bytes {
  return concat(toUtf8("samara-masking-keys-1\0"), fieldsOf(keys), keys.deviceKey);
}

/** Returns keys as a frame. */
export function encodeMaskingKeys(keys: MaskingKeys): Bytes {
  const body = concat(fieldsOf(keys), sized(keys.deviceKey), sized(keys.signature));
  return pack(KIND.maskingKeys, body);
}

function fieldsOf(keys: Omit<MaskingKeys, "signature">): Bytes {
  const { token, client, sealingKey, maskKey, commitment } = keys;
  return new Writer().bytes(token).u32(client).bytes(sealingKey).bytes(maskKey).bytes(commitment).end();
}

/** Reads keys; the signature is not checked. */
export function decodeMaskingKeys(frame: Bytes): MaskingKeys {
  const reader = unpack(frame, KIND.maskingKeys);
  const keys = {
    token: reader.bytes(8),
    client: reader.u32(),
    sealingKey: reader.bytes(KEY_BYTES),
    maskKey: reader.bytes(KEY_BYTES),
    commitment: reader.bytes(HASH_BYTES),
    deviceKey: readSized(reader),
    signature: readSized(reader),
  };
  reader.end();
  checkClient(keys.client);
  return keys;
}

/** All clients of a round, ascending, and the keys of the receiver's neighbourhood. */
export interface KeyList {
  readonly token: Bytes;
  readonly clients: readonly number[];
  readonly keys: readonly MaskingKeys[];
}

/** Returns a key list as a frame. */
export function encodeKeyList({ token, clients, keys }: KeyList): Bytes {
  const listed = keys.map((one) => sized(encodeMaskingKeys(one)));
  const writer = new Writer().bytes(token).bytes(listOf(clients)).u32(keys.length);
  return pack(KIND.keyList, writer.bytes(concat(...listed)).end());
}

/** Reads a key list. */
export function decodeKeyList(frame: Bytes): KeyList {
  const reader = unpack(frame, KIND.keyList);
  const token = reader.bytes(8);
  const clients = readClients(reader);
  const keys = readEntries(reader, () => decodeMaskingKeys(readSized(reader, 2 * MAX_BYTES)));
  reader.end();
  checkAscending(keys.map(({ client }) => client));
  const known = new Set(clients);
  check(
    keys.every((one) => areEqual(one.token, token) && known.has(one.client)),
    "a key list has keys of another round, or of a client not listed",
  );
  return { token, clients, keys };
}

/** A key list of a round with buckets, with the digests of all clients' keys. */
export interface BucketKeyList {
  readonly listed: KeyList;
  readonly digests: readonly Bytes[];
}

/** Returns a bucket key list as a frame. */
export function encodeBucketKeyList({ listed, digests }: BucketKeyList): Bytes {
  const writer = new Writer().u32(digests.length).bytes(concat(...digests));
  return pack(KIND.bucketKeyList, writer.bytes(encodeKeyList(listed)).end());
}

/** Reads a bucket key list. */
export function decodeBucketKeyList(frame: Bytes): BucketKeyList {
  const reader = unpack(frame, KIND.bucketKeyList);
  const count = reader.u32();
  const all = reader.bytes(count * HASH_BYTES);
  const listed = decodeKeyList(reader.bytes(reader.left));
  check(listed.clients.length === count, `${count} digests for ${listed.clients.length} clients`);
  const digests = listed.clients.map((_, at) => all.slice(HASH_BYTES * at, HASH_BYTES * (at + 1)));
  return { listed, digests };
}

/** Ciphertexts of 94 bytes by neighbour; on the way down, the client is the receiver. */
export interface SealedShares {
  readonly token: Bytes;
  readonly client: number;
  readonly sealed: ReadonlyMap<number, Bytes>;
}

/** Returns sealed shares as a frame. */
export function encodeSealedShares({ token, client, sealed }: SealedShares): Bytes {
  const writer = new Writer().bytes(token).u32(client, sealed.size);
  for (const [neighbour, one] of sealed) writer.u32(neighbour).bytes(one);
  return pack(KIND.sealedShares, writer.end());
}

/** Reads sealed shares. */
export function decodeSealedShares(frame: Bytes): SealedShares {
  const reader = unpack(frame, KIND.sealedShares);
  const [token, client] = [reader.bytes(8), reader.u32()];
  const sealed = readEntries(reader, () => [reader.u32(), reader.bytes(SEALED_BYTES)] as const);
  reader.end();
  checkClient(client);
  checkAscending(sealed.map(([neighbour]) => neighbour));
  return { token, client, sealed: new Map(sealed) };
}

/** The clients whose masked reports the server sums, ascending. */
export interface SurvivorList {
  readonly token: Bytes;
  readonly survivors: readonly number[];
}

/** Returns the bytes that clients sign to confirm that this is the round's only list. */
export async function signedSurvivors(
  { token, survivors }: SurvivorList,
  clientsDigest: Bytes,
): Promise<Bytes> {
  const listed = await sha256(listOf(survivors));
  return concat(toUtf8("samara-survivors-2\0"), token, clientsDigest, listed);
}

/** Returns a survivor list as a frame. */
export function encodeSurvivorList({ token, survivors }: SurvivorList): Bytes {
  return pack(KIND.survivorList, concat(token, listOf(survivors)));
}

/** Reads a survivor list. */
export function decodeSurvivorList(frame: Bytes): SurvivorList {
  const reader = unpack(frame, KIND.survivorList);
  const listed = { token: reader.bytes(8), survivors: readClients(reader) };
  reader.end();
  return listed;
}

/** A client's signature of a survivor list. */
export interface SurvivorSignature {
  readonly token: Bytes;
  readonly client: number;
  readonly signature: Bytes;
}

/** Returns the signature of a survivor list as a frame. */
export function encodeSurvivorSignature(one: SurvivorSignature): Bytes {
  const writer = new Writer().bytes(one.token).u32(one.client).bytes(sized(one.signature));
  return pack(KIND.survivorSignature, writer.end());
}

/** Reads the signature of a survivor list, without verifying it. */
export function decodeSurvivorSignature(frame: Bytes): SurvivorSignature {
  const reader = unpack(frame, KIND.survivorSignature);
  const [token, client, signature] = [reader.bytes(8), reader.u32(), readSized(reader)];
  reader.end();
  checkClient(client);
  return { token, client, signature };
}

/** Signatures of a survivor list by neighbour. */
export interface SignatureList {
  readonly token: Bytes;
  readonly signatures: ReadonlyMap<number, Bytes>;
}

/** Returns a signature list as a frame. */
export function encodeSignatureList({ token, signatures }: SignatureList): Bytes {
  const writer = new Writer().bytes(token).u32(signatures.size);
  for (const [client, one] of signatures) writer.u32(client).bytes(sized(one));
  return pack(KIND.signatureList, writer.end());
}

/** Reads a signature list, without verifying the signatures. */
export function decodeSignatureList(frame: Bytes): SignatureList {
  const reader = unpack(frame, KIND.signatureList);
  const token = reader.bytes(8);
  const signatures = readEntries(reader, () => [reader.u32(), readSized(reader)] as const);
  reader.end();
  checkAscending(signatures.map(([client]) => client));
  return { token, signatures: new Map(signatures) };
}

/** A client's shares by owner: of seeds for survivors, of mask keys for clients that left. */
export interface RevealedShares {
  readonly token: Bytes;
  readonly client: number;
  readonly seeds: ReadonlyMap<number, Bytes>;
  readonly keys: ReadonlyMap<number, Bytes>;
}

/** Returns revealed shares as a frame. */
export function encodeRevealedShares({ token, client, seeds, keys }: RevealedShares): Bytes {
  const both = [seeds, keys].flatMap((shares, kind) =>
    [...shares].map(([owner, share]) => ({ owner, kind, share })),
  );
  both.sort((one, other) => one.owner - other.owner);
  const writer = new Writer().bytes(token).u32(client, both.length);
  for (const { owner, kind, share } of both) writer.u32(owner).u8(kind).bytes(share);
  return pack(KIND.revealedShares, writer.end());
}

/** Reads revealed shares. */
export function decodeRevealedShares(frame: Bytes): RevealedShares {
  const reader = unpack(frame, KIND.revealedShares);
  const [token, client] = [reader.bytes(8), reader.u32()];
  const shares = readEntries(
    reader,
    () => [reader.u32(), reader.u8(), reader.bytes(SHARE_BYTES)] as const,
  );
  reader.end();
  checkClient(client);
  checkAscending(shares.map(([owner]) => owner));
  check(
    shares.every(([, kind]) => kind < 2),
    "a share is of an unknown kind",
  );
  const ofKind = (wanted: number): ReadonlyMap<number, Bytes> =>
    new Map(shares.filter(([, kind]) => kind === wanted).map(([owner, , one]) => [owner, one]));
  return { token, client, seeds: ofKind(0), keys: ofKind(1) };
}

function sized(data: Bytes): Bytes {
  return concat(new Writer().u16(data.length).end(), data);
}

function readSized(reader: Reader, most = MAX_BYTES): Bytes {
  const size = reader.u16();
  check(size > 0 && size <= most, `a key or a signature of ${size} bytes is out of range`);
  return reader.bytes(size);
}

function listOf(clients: readonly number[]): Bytes {
  return new Writer().u32(clients.length).array(Uint32Array.from(clients)).end();
}

function readClients(reader: Reader): number[] {
  const count = reader.u32();
  check(count > 0 && count <= MAX_CLIENTS, `a list of ${count} clients is out of range`);
  const clients = Array.from(new Uint32Array(reader.bytes(4 * count).buffer));
  checkAscending(clients);
  return clients;
}

function readEntries<T>(reader: Reader, read: () => T): T[] {
  const count = reader.u32();
  check(count > 0 && count <= MOST_NEIGHBOURS, `a list of ${count} neighbours is out of range`);
  return Array.from({ length: count }, read);
}

/** Throws `FrameError` unless client indices are strictly ascending and none is too large. */
function checkAscending(clients: readonly number[]): void {
  checkClient(clients.at(-1)!);
  check(
    clients.every((one, at) => !at || clients[at - 1]! < one),
    "clients are not listed in ascending order, each once",
  );
}
