/**
 * A client's reports in a run with differential privacy, and its account of their cost.
 *
 * A report is clipped as a whole. Its cost is charged in the same write that stores it, so that no
 * report is made twice with fresh noise (client/protocol/private_report.py, privacy_budget.py).
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
/** The δ of a client's own ε; the server's δ is not trusted for it. */
const OWN_DELTA = 1e-5;
/**
 * Codes of refusals whose reason may reveal facts about examples; others concern files and
 * messages.
 */
const TELLING = [0, 2, 3, 6, 10, 16, 18, 19];

/** A noised report that was about to leave the device, and its cost. */
interface Charge {
  readonly round: number;
  readonly mode: PrivacyTerms["mode"];
  readonly rho: number;
}

/** Makes a client's private reports: clipped as a whole, noised, and masked. */
export class PrivateReports {
  readonly #client: number;
  readonly #key: OwnKey;
  /** The part in secure aggregation, and the settings of its runs. */
  #masking: { readonly settings: Bytes; readonly client: MaskingClient } | null = null;

  constructor(client: number, key: OwnKey) {
    this.#client = client;
    this.#key = key;
  }

  /**
   * Returns the answer to a masking frame under a run's settings; nothing for sealed shares.
   *
   * @throws MaskingError if the run's reports have no masks, or the frame violates the protocol.
   */
  async mask(frame: Bytes, settings: Bytes, privacy: PrivacyTerms | null): Promise<Bytes> {
    if (!privacy?.isMasked) throw new MaskingError("reports have no masks in this run");
    return this.#maskingUnder(settings, privacy).answer(frame);
  }

  /**
   * Returns a report as the frame to send.
   *
   * @throws FrameError if only one of the instruction and the run has a per-round clip.
   * @throws MaskingError if masks are due, but the preceding exchanges were not made.
   */
  async encode(
    report: Report,
    { jointClip }: TrainInstruction,
    settings: Bytes,
    privacy: PrivacyTerms,
  ): Promise<Bytes> {
    const { isAdaptive, isMasked, sigma } = privacy;
    if (isAdaptive !== jointClip > 0)
      throw new FrameError("the instruction's clip contradicts the run's settings");
    const vector = encodeVector(report, isAdaptive ? jointClip : privacy.clip, isAdaptive);
    const { token, client } = report;
    const hidden = { token, client, vector: sigma ? addNoise(vector, sigma) : vector };
    return isMasked
      ? this.#maskingUnder(settings, privacy).mask(hidden)
      : encodeVectorReport(hidden);
  }

  /** Masking frames contain no run id, so masks agreed under other settings are dropped. */
  #maskingUnder(settings: Bytes, privacy: PrivacyTerms): MaskingClient {
    if (!this.#masking || !areEqual(this.#masking.settings, settings))
      this.#masking = { settings, client: new MaskingClient(this.#client, this.#key, privacy) };
    return this.#masking.client;
  }
}

/**
 * Returns an error, or a constant one in its place if its reason may reveal facts about examples.
 */
export function withoutExamples(error: unknown): unknown {
  const code = error instanceof PhoneError ? error.code : 0;
  return TELLING.includes(code) ? new HiddenRefusal(String(error)) : error;
}

/**
 * The owner's ε limit is reached by one more round, or cannot be counted because there is no noise.
 */
export type Limit = "reached" | "no noise";

/**
 * Throws `BudgetError` if a report would exceed the owner's limit or the run's ε, or is a second
 * report.
 *
 * @param token token of the instruction, for which no report is stored.
 * @param privacy terms that protect the run's reports; null if there are none.
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
    throw new BudgetError(`round ${round} is beyond the ${rounds} rounds of ε`);
}

/** Returns the store entries that charge a report, to be written together with it. */
export function chargeOf(
  { runId, round }: TrainInstruction,
  token: Bytes,
  { mode, rho }: PrivacyTerms,
): readonly [string, Charge] {
  return [keyOf(runId, token), { round, mode, rho }];
}

/** Returns the total ε of all noised reports at δ = 10⁻⁵; 0 if there are none. */
export async function epsilonSpent(store: Store): Promise<number> {
  return epsilonOf(sumOf(await store.list(CHARGES)), OWN_DELTA);
}

/** Returns the owner's limit on the total ε of all reports; 0 means no limit. */
export async function epsilonLimit(store: Store): Promise<number> {
  return ((await store.read(LIMIT)) as number | undefined) ?? 0;
}

/** Stores the owner's limit on the total ε of all reports from now on; 0 means no limit. */
export async function limitEpsilon(store: Store, limit: number): Promise<void> {
  if (!(limit >= 0 && limit < Infinity)) throw new RangeError("a limit is a number of at least 0");
  await store.write(new Map([[LIMIT, limit]]));
}

/**
 * Returns the reason why the owner's limit allows no further round of a run; null if it allows one.
 */
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
