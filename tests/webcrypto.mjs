// Secure aggregation's cipher suite in what browsers and Node have: WebCrypto and BigInt.
//
// `derive` makes everything in tests/golden/masks.json from what is drawn at random there; `take`
// is one client's part in a round, with secrets of its own. Bytes are hexadecimal, and numbers of 64
// bits are decimal strings. The layout of bytes is in docs/reference/wire.md.

const subtle = globalThis.crypto.subtle;
const CURVE = { name: "ECDH", namedCurve: "P-256" };
const DEVICE = { name: "ECDSA", namedCurve: "P-384" };
const PRIME = 2n ** 256n + 297n;
const SHARE_BYTES = 33;

const text = (value) => new TextEncoder().encode(value);
const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
const bytesOf = (value) => Uint8Array.from(value.match(/../g) ?? [], (pair) => parseInt(pair, 16));
const base64url = (bytes) =>
  btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
const fromBase64url = (value) =>
  Uint8Array.from(atob(value.replace(/-/g, "+").replace(/_/g, "/")), (one) => one.charCodeAt(0));
const u32 = (value) => {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, value, true);
  return bytes;
};
const concat = (...parts) => Uint8Array.from(parts.flatMap((part) => [...part]));
const numberOf = (bytes) => BigInt("0x" + hex(bytes.slice().reverse()));
const littleEndian = (number, size) => bytesOf(number.toString(16).padStart(2 * size, "0")).reverse();

// A secret is a private number, little-endian; JWK wants it the other way round, with its point.
async function keyOf(secret, point) {
  const [x, y] = [point.slice(1, 33), point.slice(33)].map(base64url);
  const jwk = { kty: "EC", crv: "P-256", d: base64url(secret.slice().reverse()), x, y };
  return subtle.importKey("jwk", jwk, CURVE, true, ["deriveBits"]);
}

async function digestOf(token, clients) {
  const listed = concat(text("samara-clients-1\0"), token, ...clients.map(u32));
  return new Uint8Array(await subtle.digest("SHA-256", listed));
}

// A key of two clients is bound to both, and to the list of clients that both were given.
const pairOf = (digest, one, other) => concat(digest, u32(Math.min(one, other)), u32(Math.max(one, other)));

async function agree(key, point, purpose, pair) {
  const other = await subtle.importKey("raw", point, CURVE, true, []);
  const shared = await subtle.deriveBits({ name: "ECDH", public: other }, key, 256);
  const base = await subtle.importKey("raw", shared, "HKDF", false, ["deriveBits"]);
  const info = concat(text("samara-masking-2\0" + purpose + "\0"), pair);
  const how = { name: "HKDF", hash: "SHA-256", salt: new Uint8Array(0), info };
  return new Uint8Array(await subtle.deriveBits(how, base, 256));
}

async function maskOf(bytes, count) {
  const key = await subtle.importKey("raw", bytes, "AES-CTR", false, ["encrypt"]);
  const how = { name: "AES-CTR", counter: new Uint8Array(16), length: 128 };
  const view = new DataView(await subtle.encrypt(how, key, new Uint8Array(8 * count)));
  return Array.from({ length: count }, (_, place) => view.getBigUint64(8 * place, true));
}

async function sealing(bytes, nonce, sender, receiver, token) {
  const key = await subtle.importKey("raw", bytes, "AES-GCM", false, ["encrypt", "decrypt"]);
  const additionalData = concat(token, u32(sender), u32(receiver));
  return [{ name: "AES-GCM", iv: nonce, additionalData }, key];
}

async function seal(bytes, content, nonce, sender, receiver, token) {
  const how = await sealing(bytes, nonce, sender, receiver, token);
  return concat(nonce, new Uint8Array(await subtle.encrypt(...how, content)));
}

async function unseal(bytes, sealed, sender, receiver, token) {
  const how = await sealing(bytes, sealed.slice(0, 12), sender, receiver, token);
  return new Uint8Array(await subtle.decrypt(...how, sealed.slice(12)));
}

async function commitTo(seed) {
  return new Uint8Array(await subtle.digest("SHA-256", concat(text("samara-seed-1\0"), seed)));
}

async function masked(vector, client, seed, pairs) {
  const total = vector.slice();
  const add = async (key, sign) => {
    (await maskOf(key, total.length)).forEach((number, place) => {
      total[place] = BigInt.asUintN(64, total[place] + sign * number);
    });
  };
  await add(seed, 1n);
  for (const [neighbour, key] of pairs) await add(key, client < neighbour ? 1n : -1n);
  return total;
}

// Coefficients of the polynomial are given from the highest power down.
function sharesOf(secret, points, coefficients) {
  return points.map((point) => {
    const value = coefficients.reduce((sum, one) => ((sum + one) * BigInt(point)) % PRIME, 0n);
    return littleEndian((value + secret) % PRIME, SHARE_BYTES);
  });
}

export async function derive(given) {
  const token = bytesOf(given.token), own = new Map(given.clients.map((one) => [one.client, one]));
  const me = own.get(given.client), vector = given.vector.map(BigInt);
  const keys = async (use) =>
    keyOf(bytesOf(me[`${use}_secret`]), bytesOf(me[`${use}_key`]));
  const [sealingKey, maskKey] = [await keys("sealing"), await keys("mask")];
  const pairs = [], pairKeys = [], digest = await digestOf(token, [...own.keys()]);
  for (const { neighbour, content } of given.pairs) {
    const other = own.get(neighbour);
    const pair = pairOf(digest, me.client, neighbour);
    const forShares = await agree(sealingKey, bytesOf(other.sealing_key), "shares", pair);
    const forMasks = await agree(maskKey, bytesOf(other.mask_key), "mask", pair);
    const nonce = bytesOf(given.nonce), written = bytesOf(content);
    const sealed = await seal(forShares, written, nonce, me.client, neighbour, token);
    const opened = await unseal(forShares, sealed, me.client, neighbour, token);
    pairKeys.push([neighbour, forMasks]);
    pairs.push({
      neighbour,
      key_for_shares: hex(forShares),
      key_for_masks: hex(forMasks),
      mask: (await maskOf(forMasks, vector.length)).map(String),
      content: hex(opened),
      sealed: hex(sealed),
    });
  }
  const seed = bytesOf(me.mask_seed);
  const commitments = [];
  for (const one of given.clients) commitments.push(hex(await commitTo(bytesOf(one.mask_seed))));
  const shares = sharesOf(numberOf(seed), given.points, given.coefficients.map(BigInt));
  return {
    clients_digest: hex(digest),
    commitments,
    pairs,
    masked: (await masked(vector, me.client, seed, pairKeys)).map(String),
    shares: shares.map(hex),
  };
}

// A signature of WebCrypto is r and s, one after the other; everyone else's is DER.
function asDer(signature) {
  const half = signature.length / 2;
  const numbers = [signature.slice(0, half), signature.slice(half)].map((part) => {
    const first = part.findIndex((byte) => byte > 0);
    const bytes = part.slice(first);
    const own = bytes[0] > 127 ? concat([0], bytes) : bytes;
    return concat([2, own.length], own);
  });
  const body = concat(...numbers);
  return concat([0x30, body.length], body);
}

async function freshKey() {
  const pair = await subtle.generateKey(CURVE, true, ["deriveBits"]);
  const { d } = await subtle.exportKey("jwk", pair.privateKey);
  const point = new Uint8Array(await subtle.exportKey("raw", pair.publicKey));
  return { key: pair.privateKey, point, secret: fromBase64url(d).reverse() };
}

export async function take(given) {
  const token = bytesOf(given.token), { client, other } = given, seed = new Uint8Array(32);
  globalThis.crypto.getRandomValues(seed);
  const [sealer, masker] = [await freshKey(), await freshKey()], commitment = await commitTo(seed);
  const device = await subtle.generateKey(DEVICE, true, ["sign"]);
  const spki = new Uint8Array(await subtle.exportKey("spki", device.publicKey));
  const lines = btoa(String.fromCharCode(...spki)).match(/.{1,64}/g).join("\n");
  const pem = `-----BEGIN PUBLIC KEY-----\n${lines}\n-----END PUBLIC KEY-----\n`;
  const said = concat(
    ...[text("samara-masking-keys-1\0"), token, u32(client), sealer.point, masker.point],
    ...[commitment, text(pem)],
  );
  const how = { name: "ECDSA", hash: "SHA-256" };
  const signature = new Uint8Array(await subtle.sign(how, device.privateKey, said));
  const clients = [client, other.client].sort((one, next) => one - next);
  const pair = pairOf(await digestOf(token, clients), ...clients);
  const forShares = await agree(sealer.key, bytesOf(other.sealing_key), "shares", pair);
  const forMasks = await agree(masker.key, bytesOf(other.mask_key), "mask", pair);
  const nonce = globalThis.crypto.getRandomValues(new Uint8Array(12));
  const content = concat(seed, [0], masker.secret, [0]);
  const pairs = [[other.client, forMasks]];
  return {
    sealing_key: hex(sealer.point),
    mask_key: hex(masker.point),
    commitment: hex(commitment),
    device_key: pem,
    signature: hex(asDer(signature)),
    sealed: hex(await seal(forShares, content, nonce, client, other.client, token)),
    masked: (await masked(given.vector.map(BigInt), client, seed, pairs)).map(String),
  };
}
