/** The program's files, which are downloaded once, verified by hash, and cached in the browser. */

import type { Bytes } from "./bytes.ts";
import { hasHash, type ModelFiles } from "./encoder.ts";
import { PlainError, ProgramError } from "./errors.ts";
import { readIndex, type ProgramFile, type ProgramIndex } from "./task.ts";

const CACHE = "samara-program";
const INDEX = "/program/index.json";

/** Returns the index of the program, or the cached one if the gateway cannot be reached. */
export async function fetchIndex(): Promise<ProgramIndex> {
  const cache = await openCache();
  try {
    const answer = await fetched(INDEX);
    if (!answer.ok) throw new ProgramError(`the gateway has no program: ${answer.status}`);
    const index = readIndex(await answer.clone().text());
    await keep(cache, INDEX, answer);
    return index;
  } catch (error) {
    const kept = await cache?.match(INDEX);
    if (!kept) throw error;
    return readIndex(await kept.text());
  }
}

/**
 * Returns a file of the program, from the browser's cache if it is there.
 *
 * @param onBytes function that receives the number of bytes since its previous call.
 * @throws ProgramError if the received file does not match.
 */
export async function fetchFile(
  { sha256, bytes }: ProgramFile,
  onBytes: (count: number) => void,
): Promise<Bytes> {
  const cache = await openCache();
  const address = `/program/${sha256}`;
  const kept = await cache?.match(address);
  if (kept) {
    const content = new Uint8Array(await kept.arrayBuffer());
    if (await hasHash(content, sha256)) {
      onBytes(bytes);
      return content;
    }
    await cache?.delete(address);
  }
  const answer = await fetched(address);
  if (!answer.ok || !answer.body)
    throw new ProgramError(`a file of the program cannot be downloaded: ${answer.status}`);
  const content = new Uint8Array(bytes);
  let at = 0;
  for (const reader = answer.body.getReader(); ; ) {
    const { done, value } = await reader.read().catch(offline);
    if (done) break;
    if (at + value.length > bytes) throw new ProgramError("a file of the program is too long");
    content.set(value, at);
    at += value.length;
    onBytes(value.length);
  }
  if (at !== bytes || !(await hasHash(content, sha256)))
    throw new ProgramError("a file of the program is damaged; try again");
  await keep(cache, address, new Response(content));
  return content;
}

/** Returns the cache of files; null in a browser that has none and downloads them each time. */
async function openCache(): Promise<Cache | null> {
  try {
    return await caches.open(CACHE);
  } catch (error) {
    console.warn("this browser stores no files:", error);
    return null;
  }
}

/** Caches a file, if there is room. */
async function keep(cache: Cache | null, address: string, file: Response): Promise<void> {
  await cache?.put(address, file).catch((error: unknown) =>
    console.warn("a file is fetched anew the next time:", error),
  );
}

/** Returns the gateway's response; a proxy's report that it is unreachable counts as no network. */
async function fetched(address: string): Promise<Response> {
  const answer = await fetch(address).catch(offline);
  return answer.status < 500 ? answer : offline(answer.status);
}

function offline(error: unknown): never {
  console.warn("the program cannot be downloaded:", error);
  throw new PlainError("program");
}

/** Returns the total bytes of a model's files. */
export function sizeOf(index: ProgramIndex): number {
  const files = [index.graph, ...index.weights];
  return files.reduce((sum, one) => sum + one.bytes, sizeOfTokenizer(index));
}

/** Returns the total bytes of the gateway's program, without storing anything. */
export async function fetchSize(): Promise<number> {
  return sizeOf(readIndex(await (await fetch(INDEX)).text()));
}

/** Returns the total bytes of a tokenizer's files. */
export function sizeOfTokenizer({ tokenizer }: ProgramIndex): number {
  return Object.values(tokenizer).reduce((sum, one) => sum + one.bytes, 0);
}

/**
 * Returns the tokenizer's files, parsed, by name.
 *
 * @param onBytes function that receives the number of bytes since its previous call.
 */
export async function fetchTokenizer(
  { tokenizer }: ProgramIndex,
  onBytes: (count: number) => void,
): Promise<Readonly<Record<string, unknown>>> {
  const texts: Record<string, unknown> = {};
  for (const [name, file] of Object.entries(tokenizer))
    if (name.endsWith(".json"))
      texts[name] = JSON.parse(new TextDecoder().decode(await fetchFile(file, onBytes)));
  return texts;
}

/**
 * Returns the files of the model.
 *
 * @param onBytes function that receives the number of bytes since its previous call.
 */
export async function fetchModel(
  index: ProgramIndex,
  onBytes: (count: number) => void,
): Promise<ModelFiles> {
  const graph = await fetchFile(index.graph, onBytes);
  const weights: { path: string; data: Bytes }[] = [];
  for (const one of index.weights)
    weights.push({ path: one.path, data: await fetchFile(one, onBytes) });
  return { graph, weights };
}

/** Deletes all cached files. */
export async function forgetFiles(): Promise<void> {
  await caches.delete(CACHE);
}
