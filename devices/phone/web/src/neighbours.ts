/**
 * Neighbourhoods whose clients share masks in a round, and buckets drawn by lot.
 *
 * Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead" (2020), section
 * 3.1. Both are derived from the round's token and from keys, so a client can verify the server's
 * claims.
 */

import { concat, sha256, toHex, toUtf8, Writer, type Bytes } from "./bytes.ts";

/** The minimum number of clients in a sum; with two, each would know the other's vector. */
export const LEAST_CLIENTS = 3;
/** The maximum number of clients in a neighbourhood, including the client itself. */
export const MOST_NEIGHBOURS = 101;

/** Returns t, the smallest number above two thirds of a count. */
export function leastNumber(count: number): number {
  return Math.floor((2 * count) / 3) + 1;
}

/** Returns a client's neighbourhood, including itself, ascending. */
export async function neighbourhoodOf(
  client: number,
  token: Bytes,
  clients: readonly number[],
): Promise<number[]> {
  if (clients.length <= MOST_NEIGHBOURS) return ascending(clients);
  const circle = await orderedBy(concat(toUtf8("samara-circle-1\0"), token), clients);
  const first = circle.indexOf(client) - (MOST_NEIGHBOURS - 1) / 2 + circle.length;
  const around = Array.from({ length: MOST_NEIGHBOURS }, (_, at) => (first + at) % circle.length);
  return ascending(around.map((at) => circle[at]!));
}

/**
 * Returns the clients of a client's bucket, ascending; empty if the client is not in the round.
 *
 * @param digests the digest of each client's keys, in ascending order of the clients.
 * @param size the minimum number of clients in a bucket.
 */
export async function bucketOf(
  client: number,
  token: Bytes,
  clients: readonly number[],
  digests: readonly Bytes[],
  size: number,
): Promise<number[]> {
  const known = new Writer().bytes(toUtf8("samara-buckets-1\0")).bytes(token);
  clients.forEach((one, at) => known.u32(one).bytes(digests[at]!));
  const lot = await sha256(known.end());
  const order = await orderedBy(lot, clients);
  const count = Math.max(1, Math.floor(clients.length / size));
  const own = order.indexOf(client) % count;
  return ascending(order.filter((_, at) => at % count === own));
}

/** Returns a client index as 4 bytes. */
export function indexBytes(client: number): Bytes {
  return new Writer().u32(client).end();
}

/** Returns clients ordered by the SHA-256 of a prefix and their index. */
async function orderedBy(beginning: Bytes, clients: readonly number[]): Promise<number[]> {
  const placed = await Promise.all(
    clients.map(async (one) => [toHex(await sha256(beginning, indexBytes(one))), one] as const),
  );
  return placed.sort(([one], [other]) => (one < other ? -1 : 1)).map(([, client]) => client);
}

function ascending(clients: readonly number[]): number[] {
  return [...clients].sort((one, other) => one - other);
}
