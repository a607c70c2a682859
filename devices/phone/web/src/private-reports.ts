/**
 * What leaves a client in a run with differential privacy, and its account of it.
 *
 * A report is clipped as a whole, and what it costs is charged in the same write that keeps it, so
 * that none is made twice with fresh noise (client/protocol/private_report.py, privacy_budget.py).
 */

import { epsilonOf, rhoWithin, ROUNDING } from "./accountant.ts";
import type { Report } from "./answers.ts";
import { areEqual, toHex, type Bytes } from "./bytes.ts";
import { BudgetError, FrameError, HiddenRefusal, MaskingError, PhoneError } from "./errors.ts";
import type { TrainInstruction } from "./instructions.ts";
import { MaskingClient } from "./masking-client.ts";
import type { PrivacyTerms } from "./privacy-terms.ts";
import type { OwnKey } from "./signing.ts";
import type { Store } from "./store.ts";
import { addNoise, encodeVector, encodeVectorReport } from "./vector.ts";

const CHARGES = "charge/";
const LIMIT = "epsilon-limit";
/** The δ of a client's own ε; a server's would say what it likes. */
const OWN_DELTA = 1e-5;
/** The codes of refusals whose reason may tell of examples; others are of files and messages. */
const TELLING = [0, 2, 3, 6, 10, 16, 18, 19];

/** A report with noise that was about to leave the device, and its cost. */
interface Charge {
  readonly round: number;
  readonly mode: PrivacyTerms["mode"];
  readonly rho: number;
}

/** The private reports of a client: each clipped as a whole, with its noise, under its masks. */
export class PrivateReports {
  readonly #client: number;
  readonly #key: OwnKey;
  /** The part in secure aggregation, and the settings of the runs that it is of. */
  #masking: { readonly settings: Bytes; readonly client: MaskingClient } | null = null;

  constructor(client: number, key: OwnKey) {
    this.#client = client;
    this.#key = key;
  }

  /**
   * Returns the answer to a masking frame under a run's settings; nothing to sealed shares.
   *
   * @throws MaskingError if reports of the run have no masks, or it asks for what is not done.
   */
  async mask(frame: Bytes, settings: Bytes, privacy: PrivacyTerms | null): Promise<Bytes> {
    if (!privacy?.isMasked) throw new MaskingError("reports have no masks in this run");
    return this.#maskingUnder(settings, privacy).answer(frame);
  }

  /**
   * Returns a report as the frame that may leave.
   *
   * @throws FrameError if the instruction has a clip of its own and the run none, or the other way.
   * @throws MaskingError if masks are due, and the exchanges before the report were not made.
   */
  async encode(
    report: Report,
    { jointClip }: TrainInstruction,
    settings: Bytes,
    privacy: PrivacyTerms,
  ): Promise<Bytes> {
    const { isAdaptive, isMasked, sigma } = privacy;
    if (isAdaptive !== jointClip > 0)
      throw new FrameError("the instruction's clip is not as the run's settings say");
    const vector = encodeVector(report, isAdaptive ? jointClip : privacy.clip, isAdaptive);
    const { token, client } = report;
    const hidden = { token, client, vector: sigma ? addNoise(vector, sigma) : vector };
    return isMasked
      ? this.#maskingUnder(settings, privacy).mask(hidden)
      : encodeVectorReport(hidden);
  }

  /** Masking frames name no run: masks that were agreed on under other settings are forgotten. */
  #maskingUnder(settings: Bytes, privacy: PrivacyTerms): MaskingClient {
    if (!this.#masking || !areEqual(this.#masking.settings, settings))
      this.#masking = { settings, client: new MaskingClient(this.#client, this.#key, privacy) };
    return this.#masking.client;
  }
}

/** Returns an error, or the constant one in its place if its reason may tell of examples. */
export function withoutExamples(error: unknown): unknown {
  const code = error instanceof PhoneError ? error.code : 0;
  return TELLING.includes(code) ? new HiddenRefusal(String(error)) : error;
}

/** Why an owner's limit of ε lets a round go: one more is over it, or its reports have no noise. */
export type Limit = "reached" | "no noise";

/**
 * Throws `BudgetError` if a report is over the owner's limit, one more than the run's ε is for, or a
 * second one.
 *
 * @param token token of the instruction, to which no report is kept.
 * @param privacy what hides the reports of the run; null if nothing does.
 */
export async function checkBudget(
  store: Store,
  { runId, round }: TrainInstruction,
  token: Bytes,
  privacy: PrivacyTerms | null,
): Promise<void> {
  const stopped = await whatStops(store, privacy);
  if (stopped) throw new BudgetError(`round ${round} is over the owner's limit of ε: ${stopped}`);
  if (!privacy) return;
  const { rho, rounds } = privacy;
  if (await store.read(keyOf(runId, token)))
    throw new BudgetError(`round ${round} was answered, and another report has fresh noise`);
  const spent = sumOf(await store.list(`${CHARGES}${toHex(runId)}/`));
  if (spent + rho > rounds * rho * ROUNDING)
    throw new BudgetError(`round ${round} would be one more than the ${rounds} that ε is for`);
}

/** Returns what charges a report, to be written with it. */
export function chargeOf(
  { runId, round }: TrainInstruction,
  token: Bytes,
  { mode, rho }: PrivacyTerms,
): readonly [string, Charge] {
  return [keyOf(runId, token), { round, mode, rho }];
}

/** Returns the ε of all reports with noise together, at δ = 10⁻⁵; 0 without any. */
export async function epsilonSpent(store: Store): Promise<number> {
  return epsilonOf(sumOf(await store.list(CHARGES)), OWN_DELTA);
}

/** Returns the largest ε that the owner allows all reports together; 0 for no limit. */
export async function epsilonLimit(store: Store): Promise<number> {
  return ((await store.read(LIMIT)) as number | undefined) ?? 0;
}

/** Keeps the owner's limit of ε for all reports from now on; 0 is none. */
export async function limitEpsilon(store: Store, limit: number): Promise<void> {
  if (!(limit >= 0 && limit < Infinity)) throw new RangeError("a limit is a number of at least 0");
  await store.write(new Map([[LIMIT, limit]]));
}

/** Returns what of the owner's limit lets no further round of a run be answered; null if nothing. */
export async function whatStops(
  store: Store,
  privacy: PrivacyTerms | null,
): Promise<Limit | null> {
  const limit = await epsilonLimit(store);
  if (!limit) return null;
  if (!privacy) return "no noise";
  const spent = sumOf(await store.list(CHARGES));
  return spent + privacy.rho > rhoWithin(limit, OWN_DELTA) * ROUNDING ? "reached" : null;
}

function keyOf(runId: Bytes, token: Bytes): string {
  return `${CHARGES}${toHex(runId)}/${toHex(token)}`;
}

function sumOf(entries: readonly (readonly [string, unknown])[]): number {
  return entries.reduce((sum, [, one]) => sum + (one as Charge).rho, 0);
}
