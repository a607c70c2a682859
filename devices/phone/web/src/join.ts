/** Joining by a link: the invitation's code after `#join=`, and this browser's own key. */

import { areEqual, concat, sha256, toHex, toUtf8, type Bytes } from "./bytes.ts";
import { InvitationError } from "./errors.ts";
import { sign, type OwnKey } from "./signing.ts";

const ALPHABET = "abcdefghijklmnopqrstuvwxyz234567";
const VERSION = 1;
const HALF = 16;
const CHECK = 2;
const PATH = "/samara/join";

/** An invitation's code: a hash of the trusted data, and the right to register one key. */
export interface InvitationCode {
  readonly trusted: Bytes;
  readonly secret: Bytes;
}

/** Reads a code, or a link that ends with one; throws `InvitationError` if it is incomplete. */
export async function readCode(text: string): Promise<InvitationCode> {
  const code = text.trim().toLowerCase().replace(/^.*#join=/, "");
  const bits = Array.from(code, (letter) => ALPHABET.indexOf(letter));
  if (bits.includes(-1)) throw new InvitationError("code");
  const digits = bits.map((five) => five.toString(2).padStart(5, "0")).join("");
  const bytes = Uint8Array.from(digits.match(/.{8}/g) ?? [], (eight) => parseInt(eight, 2));
  const content = bytes.slice(0, -CHECK);
  const isWhole =
    bytes.length === 1 + 2 * HALF + CHECK &&
    areEqual((await sha256(content)).slice(0, CHECK), bytes.slice(-CHECK));
  if (!isWhole) throw new InvitationError("code");
  if (content[0] !== VERSION) throw new InvitationError("version");
  return { trusted: content.slice(1, 1 + HALF), secret: content.slice(1 + HALF) };
}

/**
 * Registers a key with an invitation, and returns the operator's signed scenario; empty if none.
 *
 * If interrupted at any point, the same call continues with the same key.
 *
 * @throws InvitationError if the server does not match the invitation, or refuses.
 */
export async function register(code: InvitationCode, key: OwnKey): Promise<string> {
  const named = await sha256(toUtf8("samara-invitation-1\0"), code.secret);
  const welcome = await ask(`${PATH}/${toHex(named.slice(0, HALF))}`);
  const content = new Uint8Array(await welcome.arrayBuffer());
  if (!areEqual((await sha256(content)).slice(0, HALF), code.trusted))
    throw new InvitationError("trust");
  const signature = await sign(key, concat(toUtf8("samara-join-1\0"), code.secret));
  const request = {
    "public-key": new TextDecoder().decode(key.publicPem),
    secret: toHex(code.secret),
    signature: toHex(signature),
  };
  await ask(PATH, JSON.stringify(request));
  const { scenario } = JSON.parse(new TextDecoder().decode(content)) as { scenario: string };
  return scenario;
}

const REASONS: Readonly<Record<number, InvitationError["reason"]>> = {
  403: "revoked",
  404: "unknown",
  409: "used",
  410: "ended",
  422: "taken",
  429: "busy",
};

async function ask(path: string, body?: string): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, body === undefined ? {} : { method: "POST", body });
  } catch {
    throw new InvitationError("offline");
  }
  if (!answer.ok) throw new InvitationError(REASONS[answer.status] ?? "offline");
  return answer;
}
