/** Instructions: frames in which the server asks a client to train or to evaluate. */

import { Writer, type Bytes } from "./bytes.ts";
import { consecutiveSeeds, poolIndices, poolSeeds, querySeeds } from "./philox.ts";
import { check, KIND, MAX_SCALARS, pack, unpack } from "./wire.ts";

export const SEED_POLICY = { shared: 0, independent: 1, pool: 2 } as const;
export const SPLIT = { train: 0, validation: 1, test: 2 } as const;
/** The track of the intercept round, which starts from a state of the global track. */
export const INTERCEPT_TRACK = 2 ** 32 - 3;

/**
 * The kind of differences from which projected gradients are computed. With components, a report
 * holds the components of the client's own update.
 */
export type Differences = "central" | "forward" | "components";

/** An instruction to train in a round; `TrainInstruction` in Python documents the fields. */
export interface TrainInstruction {
  readonly runId: Bytes;
  readonly round: number;
  readonly track: number;
  readonly steps: number;
  readonly queries: number;
  readonly batch: number;
  readonly seedPolicy: number;
  readonly root: bigint;
  readonly epsilon: number;
  readonly learningRate: number;
  readonly clip: number;
  readonly deadline: number;
  readonly layoutHash: Bytes;
  readonly startDigest: Bytes;
  readonly poolRoot: bigint;
  readonly poolSize: number;
  readonly curvatureEvery: number;
  readonly differences: Differences;
  readonly jointClip: number;
  /** Whether losses are profiled (profiled-loss.ts). */
  readonly isProfiled: boolean;
}

/** An instruction to evaluate a state on one of the client's splits. */
export interface EvaluateInstruction {
  readonly runId: Bytes;
  readonly round: number;
  readonly track: number;
  readonly split: number;
  readonly layoutHash: Bytes;
  readonly digest: Bytes;
}

const FORWARD = 1;
const JOINTLY_CLIPPED = 2;
const INTERCEPTS = 4;
const COMPONENTS = 8;
const PROFILED = 16;

/** Returns a train instruction as a frame. */
export function encodeTrain(one: TrainInstruction): Bytes {
  const writer = new Writer()
    .bytes(one.runId)
    .u32(one.round, one.track)
    .u16(one.steps, one.queries)
    .u32(one.batch)
    .u8(one.seedPolicy)
    .u64(one.root)
    .f64(one.epsilon, one.learningRate, one.clip, one.deadline)
    .bytes(one.layoutHash)
    .bytes(one.startDigest);
  if (one.seedPolicy === SEED_POLICY.pool) writer.u64(one.poolRoot).u32(one.poolSize);
  const flags =
    (one.differences === "forward" ? FORWARD : 0) |
    (one.jointClip ? JOINTLY_CLIPPED : 0) |
    (one.track === INTERCEPT_TRACK ? INTERCEPTS : 0) |
    (one.differences === "components" ? COMPONENTS : 0) |
    (one.isProfiled ? PROFILED : 0);
  if (one.curvatureEvery || flags) writer.u16(one.curvatureEvery);
  if (flags) writer.u8(flags);
  if (one.jointClip) writer.f64(one.jointClip);
  return pack(KIND.train, writer.end());
}

/** Reads a train instruction; throws `FrameError` if it is invalid. */
export function decodeTrain(frame: Bytes): TrainInstruction {
  const reader = unpack(frame, KIND.train);
  const fields = {
    runId: reader.bytes(8),
    round: reader.u32(),
    track: reader.u32(),
    steps: reader.u16(),
    queries: reader.u16(),
    batch: reader.u32(),
    seedPolicy: reader.u8(),
    root: reader.u64(),
    epsilon: reader.f64(),
    learningRate: reader.f64(),
    clip: reader.f64(),
    deadline: reader.f64(),
    layoutHash: reader.bytes(32),
    startDigest: reader.bytes(32),
  };
  check(fields.seedPolicy <= SEED_POLICY.pool, `${fields.seedPolicy} is not a seed policy`);
  const isPooled = fields.seedPolicy === SEED_POLICY.pool;
  const poolRoot = isPooled ? reader.u64() : 0n;
  const poolSize = isPooled ? reader.u32() : 0;
  const measures = reader.left > 0;
  const curvatureEvery = measures ? reader.u16() : 0;
  const hasFlags = reader.left > 0;
  const flags = hasFlags ? reader.u8() : 0;
  check(
    !hasFlags || (flags > 0 && flags < 2 * PROFILED),
    "the train instruction asks for scalars of an unknown kind",
  );
  const isClipped = (flags & JOINTLY_CLIPPED) > 0;
  const jointClip = isClipped ? reader.f64() : 0;
  reader.end();
  const { steps, queries, batch, round, epsilon, learningRate, clip, deadline } = fields;
  check(
    Math.min(steps, queries, batch, round) >= 1 &&
      steps * queries <= MAX_SCALARS &&
      epsilon > 0 &&
      [learningRate, clip, deadline].every((value) => value >= 0) &&
      [epsilon, learningRate, clip, deadline, jointClip].every(Number.isFinite) &&
      poolSize >= (isPooled ? 1 : 0) &&
      poolSize <= MAX_SCALARS &&
      curvatureEvery >= (measures && !hasFlags ? 1 : 0) &&
      jointClip > 0 === isClipped &&
      (fields.track === INTERCEPT_TRACK) === (flags & INTERCEPTS) > 0 &&
      (!(flags & COMPONENTS) ||
        (steps === 1 &&
          fields.seedPolicy === SEED_POLICY.shared &&
          learningRate > 0 &&
          curvatureEvery === 0 &&
          !(flags & (FORWARD | INTERCEPTS | PROFILED)))),
    "a number in the train instruction is out of its range",
  );
  const differences =
    flags & COMPONENTS ? "components" : flags & FORWARD ? "forward" : "central";
  const isProfiled = (flags & PROFILED) > 0;
  return { ...fields, poolRoot, poolSize, curvatureEvery, differences, jointClip, isProfiled };
}

/** Returns the seeds of a client's queries, step by step: K·q of them. */
export function seedsOf(one: TrainInstruction, client: number): BigUint64Array<ArrayBuffer> {
  if (one.differences === "components") return consecutiveSeeds(one.root, one.queries);
  const stream = one.seedPolicy === SEED_POLICY.shared ? 0 : client + 1;
  if (one.seedPolicy !== SEED_POLICY.pool)
    return querySeeds(one.root, stream, one.steps, one.queries);
  return poolSeeds(
    one.poolRoot,
    poolIndices(one.root, stream, one.steps, one.queries, one.poolSize),
  );
}

/** Returns an evaluate instruction as a frame. */
export function encodeEvaluate(one: EvaluateInstruction): Bytes {
  const writer = new Writer().bytes(one.runId).u32(one.round, one.track).u8(one.split);
  return pack(KIND.evaluate, writer.bytes(one.layoutHash).bytes(one.digest).end());
}

/** Reads an evaluate instruction; throws `FrameError` if it is invalid. */
export function decodeEvaluate(frame: Bytes): EvaluateInstruction {
  const reader = unpack(frame, KIND.evaluate);
  const instruction = {
    runId: reader.bytes(8),
    round: reader.u32(),
    track: reader.u32(),
    split: reader.u8(),
    layoutHash: reader.bytes(32),
    digest: reader.bytes(32),
  };
  reader.end();
  check(instruction.split <= SPLIT.test, `${instruction.split} is not a split`);
  return instruction;
}
