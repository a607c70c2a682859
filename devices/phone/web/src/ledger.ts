/** Records and snapshots of a ledger, and a client's catch-up with them. */

import { areEqual, concat, crc32, sha256, toHex, toUtf8, Writer, type Bytes } from "./bytes.ts";
import { LedgerError } from "./errors.ts";
import type { Layout } from "./layout.ts";
import { digest, rebuild, replay, zeroState, type DenseValues, type State } from "./replay.ts";
import {
  commonIntercept,
  decodeRoundDelta,
  encodeRoundDelta,
  replayed,
  type RoundDelta,
} from "./round-delta.ts";

const LEDGER_VERSION = 2;
const SEGMENT_MAGIC = "SAMARALG";
const SNAPSHOT_MAGIC = "SAMARASN";
const RECORD_MAGIC = "SMLR";
const RECORD_BYTES = 16;
const HASH_BYTES = 32;
const IDENTITY_BYTES = 56;
const LINK_BYTES = 100;
const SNAPSHOT_BYTES = IDENTITY_BYTES + LINK_BYTES + 4 + HASH_BYTES;
const MEBIBYTE = 2 ** 20;
/** Size limit of records that servers of earlier versions send in place of a shorter state. */
const MOST_SHORT_BYTES = 4 * MEBIBYTE;
/** Size limit of a part of a blob, or of a list of masking keys. */
const MOST_PART_BYTES = 4 * MEBIBYTE;
/** Size limit of a run's settings together with a frame of shares. */
const MOST_OTHER_BYTES = MEBIBYTE + 2 ** 16;

/** Returns the maximum bytes of a catch-up's records, for a state of `elements` elements. */
export function mostRecordBytes(elements: number): number {
  return Math.max(SNAPSHOT_BYTES + 8 * elements, MOST_SHORT_BYTES);
}

/** Returns the maximum bytes of any gateway message, for a state of `elements` elements. */
export function mostMessageBytes(elements: number): number {
  const catchUpBytes = SNAPSHOT_BYTES + 8 * elements + mostRecordBytes(elements);
  return MOST_OTHER_BYTES + Math.max(MOST_PART_BYTES, catchUpBytes);
}

/** The identity of a ledger: its track, run (8 bytes) and layout hash. */
export interface LedgerHeader {
  readonly track: number;
  readonly runId: Bytes;
  readonly layoutHash: Bytes;
}

/** A client's state after a round, its digest, and the hash from which the ledger continues. */
export interface Session {
  readonly round: number;
  readonly head: Bytes;
  readonly state: State;
  readonly digest: Bytes;
  /** The common intercept in the state, which private fits exclude. */
  readonly common?: DenseValues;
  /** Whether the last catch-up led to a ledger other than the session's; this is not stored. */
  readonly wentBack?: true;
}

/** Returns the common intercept of a session as a state; null if there is none. */
export function commonState({ common, state }: Session, layout: Layout): State | null {
  return common ? replay(zeroState(state.length), [common], layout.distribution) : null;
}

function identity(header: LedgerHeader, magic: string): Bytes {
  const writer = new Writer().bytes(toUtf8(magic)).u16(LEDGER_VERSION, 0).u32(header.track);
  return writer.bytes(header.runId).bytes(header.layoutHash).end();
}

/** Returns the session of a client that has replayed no round of a run yet. */
export async function begin(header: LedgerHeader, layout: Layout): Promise<Session> {
  const state = zeroState(layout.size);
  const head = await sha256(identity(header, SEGMENT_MAGIC));
  return { round: 0, head, state, digest: await digest(layout.hash, state) };
}

/**
 * Returns the session at the server's round, after replaying the missing rounds.
 *
 * A server may continue from a backup that lacks some of this session's rounds. The catch-up then
 * leads to the server's round from the beginning or from a snapshot, but not from this session's
 * round. In that case the state is rebuilt from the catch-up.
 *
 * @param session the client's round and state; it is not changed.
 * @param catchUp a snapshot (empty if none is needed), and the records after it. Records of rounds
 *   that the session already has are skipped.
 * @param goal last round of the server and the digest of the state after it.
 * @throws LedgerError if snapshot or tail are damaged or do not lead there.
 */
export async function catchUp(
  session: Session,
  catchUp: { readonly snapshot: Bytes; readonly tail: Bytes },
  header: LedgerHeader,
  layout: Layout,
  goal: { readonly round: number; readonly digest: Bytes },
): Promise<Session> {
  try {
    return await follow(session, catchUp, header, layout, goal);
  } catch (error) {
    const isEmpty = catchUp.snapshot.length + catchUp.tail.length === 0;
    if (session.round === 0 || isEmpty || !(error instanceof LedgerError)) throw error;
    try {
      const rebuilt = await follow(await begin(header, layout), catchUp, header, layout, goal);
      return { ...rebuilt, wentBack: true };
    } catch {
      throw error;
    }
  }
}

async function follow(
  session: Session,
  { snapshot, tail }: { readonly snapshot: Bytes; readonly tail: Bytes },
  header: LedgerHeader,
  layout: Layout,
  goal: { readonly round: number; readonly digest: Bytes },
): Promise<Session> {
  const most = mostRecordBytes(layout.size);
  if (tail.length > most)
    throw new LedgerError(`the server sent ${tail.length} bytes of records, more than ${most}`);
  let reached = session;
  if (snapshot.length) {
    const later = await readSnapshot(snapshot, header, layout);
    if (later.round > reached.round) reached = later;
  }
  reached = await followRecords(reached, recordsAfter(tail, reached.round), header, layout);
  if (reached.round !== goal.round || !areEqual(reached.digest, goal.digest))
    throw new LedgerError(
      `the session is at round ${reached.round}, and the server asks for round ${goal.round} ` +
        `with digest ${toHex(goal.digest).slice(0, 12)}`,
    );
  return reached;
}

/** Replays records one by one and checks each digest; throws at the first mismatch. */
async function followRecords(
  session: Session,
  tail: Bytes,
  header: LedgerHeader,
  layout: Layout,
): Promise<Session> {
  let { round, head, state, digest: reached, common } = session;
  for (let at = 0; at < tail.length; ) {
    const record = await readRecord(tail.subarray(at), round + 1, head, header.track);
    state = applied(state, record.delta, layout);
    common = commonIntercept(record.delta, layout) ?? common;
    reached = record.endDigest;
    if (!areEqual(await digest(layout.hash, state), reached))
      throw new LedgerError(`round ${round + 1}: replaying it gives another digest`);
    [round, head, at] = [round + 1, record.hash, at + record.size];
  }
  return { round, head, state, digest: reached, ...(common ? { common } : {}) };
}

function applied(state: State, delta: RoundDelta, layout: Layout): State {
  try {
    return rebuild(state, replayed(delta), layout.distribution);
  } catch (error) {
    throw new LedgerError(`round ${delta.round}: ${(error as Error).message}`);
  }
}

/** Returns the session after one more round of its own ledger, and the record of that round. */
export async function append(
  session: Session,
  delta: RoundDelta,
  layout: Layout,
): Promise<{ readonly session: Session; readonly record: Bytes }> {
  const state = replay(session.state, replayed(delta), layout.distribution);
  const reached = await digest(layout.hash, state);
  const frame = encodeRoundDelta(delta);
  const start = new Writer().bytes(toUtf8(RECORD_MAGIC)).u32(frame.length, delta.round).end();
  const link = concat(session.head, start.slice(8), await sha256(frame), reached);
  const head = await sha256(link);
  const record = concat(start, new Writer().u32(crc32(start)).end(), frame, reached, head);
  return { session: { round: delta.round, head, state, digest: reached }, record };
}

interface RecordStart {
  readonly isSound: boolean;
  readonly length: number;
  readonly round: number;
}

function readStart(bytes: Bytes): RecordStart {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const isMarked = areEqual(bytes.subarray(0, 4), toUtf8(RECORD_MAGIC));
  const isSound = isMarked && view.getUint32(12, true) === crc32(bytes.subarray(0, 12));
  return { isSound, length: view.getUint32(4, true), round: view.getUint32(8, true) };
}

/** Returns a tail without its leading records of rounds up to `round`. */
function recordsAfter(tail: Bytes, round: number): Bytes {
  let rest = tail;
  while (rest.length >= RECORD_BYTES) {
    const start = readStart(rest);
    if (!start.isSound || start.round > round) break;
    rest = rest.subarray(RECORD_BYTES + start.length + 2 * HASH_BYTES);
  }
  return rest;
}

interface Record {
  readonly delta: RoundDelta;
  readonly endDigest: Bytes;
  readonly hash: Bytes;
  readonly size: number;
}

async function readRecord(
  bytes: Bytes,
  expected: number,
  previous: Bytes,
  track: number,
): Promise<Record> {
  const complain = (complaint: string): LedgerError =>
    new LedgerError(`round ${expected}: ${complaint}`);
  if (bytes.length < RECORD_BYTES) throw complain("the ledger ends inside the record");
  const { isSound, length, round } = readStart(bytes);
  if (!isSound) throw complain("the record's header is damaged");
  const size = RECORD_BYTES + length + 2 * HASH_BYTES;
  if (bytes.length < size) throw complain("the ledger ends inside the record");
  const frame = bytes.slice(RECORD_BYTES, RECORD_BYTES + length);
  const endDigest = bytes.slice(size - 2 * HASH_BYTES, size - HASH_BYTES);
  const hash = bytes.slice(size - HASH_BYTES, size);
  const link = concat(previous, bytes.subarray(8, 12), await sha256(frame), endDigest);
  if (!areEqual(await sha256(link), hash))
    throw complain("the record is damaged or does not follow the previous one");
  const delta = decodedDelta(frame, complain);
  if (round !== expected || delta.round !== expected) throw complain(`it says round ${round}`);
  if (delta.track !== track) throw complain(`it is of track ${delta.track}, not ${track}`);
  return { delta, endDigest, hash, size };
}

function decodedDelta(frame: Bytes, complain: (complaint: string) => LedgerError): RoundDelta {
  try {
    return decodeRoundDelta(frame);
  } catch (error) {
    throw complain((error as Error).message);
  }
}

async function readSnapshot(
  bytes: Bytes,
  header: LedgerHeader,
  layout: Layout,
): Promise<Session> {
  const fieldsBytes = SNAPSHOT_BYTES - HASH_BYTES;
  if (bytes.length !== SNAPSHOT_BYTES + 8 * layout.size)
    throw new LedgerError(`a snapshot of ${layout.size} elements has another length`);
  const fields = bytes.slice(0, fieldsBytes);
  if (!areEqual(await sha256(fields), bytes.subarray(fieldsBytes, SNAPSHOT_BYTES)))
    throw new LedgerError("the snapshot's header is damaged");
  if (!areEqual(fields.subarray(0, IDENTITY_BYTES), identity(header, SNAPSHOT_MAGIC)))
    throw new LedgerError("the snapshot is of another run, track or layout");
  const link = fields.slice(IDENTITY_BYTES, IDENTITY_BYTES + LINK_BYTES);
  const view = new DataView(fields.buffer);
  const round = view.getUint32(IDENTITY_BYTES + HASH_BYTES, true);
  if (round < 1 || view.getUint32(IDENTITY_BYTES + LINK_BYTES, true) !== layout.size)
    throw new LedgerError(`the snapshot of round ${round} has another number of elements`);
  const state = new BigInt64Array(bytes.slice(SNAPSHOT_BYTES).buffer);
  const endDigest = link.slice(LINK_BYTES - HASH_BYTES);
  if (!areEqual(await digest(layout.hash, state), endDigest))
    throw new LedgerError(
      `the digest of the snapshot's state is not the digest after round ${round}`,
    );
  return { round, head: await sha256(link), state, digest: endDigest };
}
