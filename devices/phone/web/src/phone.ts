/**
 * The phone as a client of a run, which replies to tasks with its program and its owner's examples.
 */

import {
  decodeRefusal,
  encodeEvaluation,
  encodeHello,
  encodeRefusal,
  encodeReport,
  type EvaluationColumn,
  type Report,
} from "./answers.ts";
import { areEqual, toHex, type Bytes } from "./bytes.ts";
import { globalColumns, personalColumns } from "./columns.ts";
import { trainForARound } from "./components.ts";
import {
  BatchLimitError,
  CatchUpError,
  EvaluationLimitError,
  FrameError,
  LayoutError,
  LedgerError,
  PhoneError,
  PlainError,
  SettingsError,
} from "./errors.ts";
import {
  decodeEvaluate,
  decodeTrain,
  INTERCEPT_TRACK,
  SPLIT,
  type EvaluateInstruction,
  type TrainInstruction,
} from "./instructions.ts";
import { begin, catchUp, commonState, type Session } from "./ledger.ts";
import {
  added,
  CLUSTERING_TRACK,
  smallestBatch,
  type Training,
} from "./local-steps.ts";
import { TASK_KIND, type Task } from "./messages.ts";
import { Personalizer, readPrivateState } from "./personalizer.ts";
import type { PrivacyTerms } from "./privacy-terms.ts";
import { chargeOf, checkBudget, PrivateReports, withoutExamples } from "./private-reports.ts";
import { interceptForTraining, interceptReport, type Learner } from "./private-rounds.ts";
import type { Program } from "./program.ts";
import type { Represented, Scorer } from "./readout.ts";
import type { State } from "./replay.ts";
import { GLOBAL_TRACK } from "./round-delta.ts";
import {
  afterRestore,
  evaluationOf,
  keysOf,
  makeRoom,
  readAnswered,
  readSession,
} from "./run-records.ts";
import { isFederation, readTerms, runIdOf, type RunTerms } from "./run-terms.ts";
import {
  checkEvaluate,
  checkReport,
  checkTimes,
  checkTrain,
  type SignedRun,
} from "./signed-run.ts";
import type { OwnKey } from "./signing.ts";
import type { Store } from "./store.ts";
import { fill, TEXTS } from "./texts.ts";
import { KIND, kindOf, tokenOf } from "./wire.ts";

const SPLIT_NAMES = ["train", "validation", "test"] as const;
const LATEST = "latest";

/** The minimum batch; a step on one example would reveal something about that example alone. */
const LEAST_BATCH = 2;

/** The owner's examples by split, as the model sees them. */
export interface OwnExamples {
  represented(split: number): Promise<Represented>;
  /** A hash of a split's examples, independent of their order; empty if there are none. */
  hash(split: number): Promise<string>;
  count(split: number): Promise<number>;
}

/** The parts of a phone: its program, key, store and examples, and the promises to its owner. */
export interface PhoneParts {
  readonly program: Program;
  readonly scorer: Scorer;
  readonly client: number;
  readonly key: OwnKey;
  readonly store: Store;
  readonly examples: OwnExamples;
  readonly signed: SignedRun | null;
  /** Facts about the browser for the hello. */
  readonly facts: Readonly<Record<string, string>>;
}

/** The models of the latest run: the global state, the private one, and facts about them. */
export interface Models {
  readonly runId: string;
  readonly terms: RunTerms;
  readonly round: number;
  readonly digest: Bytes;
  readonly w: State;
  readonly p: State;
}

/** A phone, for one task or call at a time. */
export class Phone {
  readonly #parts: PhoneParts;
  readonly #reports: PrivateReports;
  /** The privacy terms that protect the answers in the run of the latest task. */
  #privacy: PrivacyTerms | null = null;
  /** The owner's remedy for the latest refusal; empty if there is no remedy or no refusal. */
  problem = "";

  constructor(parts: PhoneParts) {
    this.#parts = parts;
    this.#reports = new PrivateReports(parts.client, parts.key);
  }

  /** Returns the answer to a task as a frame; a task that cannot be carried out is refused. */
  async answer(task: Task): Promise<Bytes> {
    try {
      const frame = await this.#reply(task);
      if (task.kind !== TASK_KIND.hello && task.kind !== TASK_KIND.refused) this.problem = "";
      return frame;
    } catch (error) {
      if (error instanceof PlainError) this.problem = error.message;
      if (!(error instanceof PhoneError)) console.error(error);
      else console.warn(`refused: ${error.message}`);
      return this.#refusal(task.instruction, this.#privacy ? withoutExamples(error) : error);
    }
  }

  /** Takes the private rounds that are due in the latest run; nothing of them is sent. */
  async takePrivateRounds(shouldStop: () => boolean | Promise<boolean>): Promise<void> {
    const latest = await this.#latest();
    if (!latest) return;
    const { runId, terms, session } = latest;
    const personalizer = await this.#personalizer(runId, terms, session);
    await personalizer.note(session);
    await personalizer.take(shouldStop);
  }

  /** Returns the models of the latest run; null before the first. */
  async models(): Promise<Models | null> {
    const latest = await this.#latest();
    if (!latest) return null;
    const { runId, terms, session } = latest;
    const { store, program } = this.#parts;
    const p = await readPrivateState(store, runId, program.layout);
    const { round, digest } = session;
    return { runId: toHex(runId), terms, round, digest, w: session.state, p };
  }

  /** Returns the examples and the readout for evaluating models. */
  async learner(): Promise<Learner> {
    const { program, client, examples, scorer } = this.#parts;
    const { readout, layout, start } = program;
    const train = await examples.represented(SPLIT.train);
    const { distribution } = layout;
    const training = { client, readout, scorer, distribution, start, examples: train };
    return { layout, training, validation: await examples.represented(SPLIT.validation) };
  }

  async #reply(task: Task): Promise<Bytes> {
    switch (task.kind) {
      case TASK_KIND.hello:
        return this.#hello(task.settings);
      case TASK_KIND.train:
        return this.#train(task);
      case TASK_KIND.evaluate:
        return this.#evaluate(task);
      case TASK_KIND.refused:
        this.problem = fill(TEXTS.notAccepted, decodeRefusal(task.instruction).code);
        return task.instruction; // the instruction is itself a refusal, and is sent back
      case TASK_KIND.mask:
        return this.#mask(task.instruction, task.settings);
      default:
        throw new FrameError("a browser needs no file of the run: its program has all");
    }
  }

  async #refusal(instruction: Bytes, error: unknown): Promise<Bytes> {
    const { code, numbers } = error instanceof PhoneError ? error : new PhoneError();
    const token = await tokenOf(instruction);
    let round = 0;
    try {
      round = (await readSession(this.#parts.store, decodeInstruction(instruction).runId))?.session.round ?? 0;
    } catch {
      // The frame is not an instruction, so it belongs to no run.
    }
    return encodeRefusal({ token, client: this.#parts.client, round, code, numbers });
  }

  /**
   * Returns the hello. The session's round is always 0; the server learns it from a refusal. The
   * hello omits counts of examples with differential privacy, or if the settings are unknown.
   */
  async #hello(settings: Bytes): Promise<Bytes> {
    const { program, client, examples, facts, signed } = this.#parts;
    this.#privacy = settings.length ? readTerms(settings).privacy : null;
    const isHidden = !settings.length || this.#privacy !== null || !!signed?.terms.privacy;
    const counts = await Promise.all(
      [0, 1, 2].map((split) => (isHidden ? 0 : examples.count(split))),
    );
    await this.#parts.store.write(new Map([["introduced", counts]]));
    const named = Object.fromEntries(SPLIT_NAMES.map((name, split) => [name, counts[split]!]));
    const said = {
      clients: 0,
      ...facts,
      quantization: program.manifest.quantization,
      replay: "typescript",
      ...(isHidden ? {} : { split_examples: named }),
    };
    return encodeHello({
      client,
      examples: counts[SPLIT.train]!,
      round: 0,
      modelId: program.modelId,
      layout: program.manifest.layout,
      facts: JSON.stringify(said),
    });
  }

  async #train(task: Task): Promise<Bytes> {
    const { client, store, signed } = this.#parts;
    const instruction = decodeTrain(task.instruction);
    const token = await tokenOf(task.instruction);
    const [terms, settings] = await this.#enter(instruction.runId, instruction.track, task.settings);
    const { privacy } = terms;
    if (signed) await checkTrain(signed, instruction);
    if (task.shares.length) await this.#mask(task.shares, settings);
    const stored = await readSession(store, instruction.runId);
    if (stored && areEqual(stored.token, token)) return stored.report;
    const session = await this.#sessionAt(instruction, task, terms);
    const answered = await readAnswered(store, instruction.runId);
    if (signed) await checkReport(signed, instruction, token, store);
    await checkBudget(store, instruction, token, privacy);
    const learner = await this.learner();
    const { training } = learner;
    const answers = training.examples.labels;
    const smallest = smallestBatch(instruction, answers, training.readout.labels);
    if (smallest < LEAST_BATCH) throw new BatchLimitError(smallest, LEAST_BATCH);
    const taken =
      instruction.track === INTERCEPT_TRACK
        ? await interceptReport(learner, terms, instruction, token, session.state)
        : await this.#takeSteps(instruction, token, terms, session.state, training);
    const report = privacy
      ? await this.#reports.encode(taken, instruction, settings, privacy)
      : encodeReport(taken);
    const round = Math.max(answered.round, instruction.round);
    const keys = keysOf(instruction.runId);
    await store.write(
      new Map<string, unknown>([
        [keys.session, { session, token, report }],
        [keys.answered, { ...answered, round, token }],
        [`sent/${Date.now()}/${client}`, { kind: "report", round, bytes: report.length }],
        ...(privacy ? [chargeOf(instruction, token, privacy)] : []),
      ]),
    );
    return report;
  }

  async #takeSteps(
    instruction: TrainInstruction,
    token: Bytes,
    terms: RunTerms,
    w: State,
    training: Training,
  ): Promise<Report> {
    const { layout } = this.#parts.program;
    const isAlone = terms.method !== "readout";
    const state = isAlone ? w : added(w, await interceptForTraining(training, layout, w));
    return trainForARound(instruction, token, state, training);
  }

  #mask(frame: Bytes, settings: Bytes): Promise<Bytes> {
    this.#privacy = settings.length ? readTerms(settings).privacy : null;
    return this.#reports.mask(frame, settings, this.#privacy);
  }

  async #evaluate(task: Task): Promise<Bytes> {
    const { client, store, signed, program } = this.#parts;
    const instruction = decodeEvaluate(task.instruction);
    const { runId, split } = instruction;
    const token = await tokenOf(task.instruction);
    const [terms] = await this.#enter(runId, instruction.track, task.settings);
    if (terms.privacy) throw new EvaluationLimitError("no noise covers an evaluation");
    if (signed) await checkEvaluate(signed, instruction, task.personal);
    if (split === SPLIT.train)
      throw new EvaluationLimitError("no client evaluates its training examples");
    const before = await readAnswered(store, runId);
    const question = `${split} ${task.personal}`;
    const stored = before.evaluations[question];
    if (stored && areEqual(stored.token, token)) return stored.frame;
    const { compared } = before;
    if (task.personal && compared.length && !areEqual(compared, instruction.digest))
      throw new EvaluationLimitError("the personal comparison of this run was already made");
    const session = await this.#sessionAt(instruction, task, terms);
    if (signed) await checkTimes(signed, instruction, task.personal, store);
    const answered = await readAnswered(store, runId); // including the restore recorded just now
    const columns = await this.#columns(task.personal, instruction, terms, session);
    const { labels } = program.readout;
    const frame = encodeEvaluation({ token, client, labels, columns });
    const evaluations = { ...answered.evaluations, [question]: { token, frame } };
    const named = evaluationOf(instruction, task.personal);
    const times = signed
      ? { ...answered.times, [named]: (answered.times?.[named] ?? 0) + 1 }
      : (answered.times ?? {});
    const now = task.personal ? instruction.digest : compared;
    await store.write(
      new Map<string, unknown>([
        [keysOf(runId).answered, { ...answered, compared: now, evaluations, times }],
        [
          `sent/${Date.now()}/${client}`,
          { kind: "evaluation", round: instruction.round, bytes: frame.length },
        ],
      ]),
    );
    return frame;
  }

  async #columns(
    isPersonal: boolean,
    { runId, split }: EvaluateInstruction,
    terms: RunTerms,
    session: Session,
  ): Promise<EvaluationColumn[]> {
    const learner = await this.learner();
    const introduced = (await this.#parts.store.read("introduced")) as number[] | undefined;
    const all = await this.#parts.examples.represented(split);
    const evaluated = firstOnes(all, introduced?.[split] ?? 0);
    const isFitted = isPersonal || terms.method === "readout";
    const used = isFitted ? [evaluated, learner.training.examples] : [evaluated];
    for (const { labels } of used)
      if (labels.length > 0 && labels.length < LEAST_BATCH)
        throw new BatchLimitError(labels.length, LEAST_BATCH);
    const common = commonState(session, learner.layout);
    const w = session.state;
    if (!isPersonal) return rounded(globalColumns(learner, terms, w, split, evaluated, common));
    const personalizer = await this.#personalizer(runId, terms, session);
    const p = await personalizer.privateState(session);
    return rounded(personalColumns(learner, terms, w, p, split, evaluated, common));
  }

  /** Returns the terms and settings of a run, which are stored from now on. */
  async #enter(
    runId: Bytes,
    track: number,
    settings: Bytes,
  ): Promise<readonly [RunTerms, Bytes]> {
    this.#privacy = null;
    const { program, store, signed } = this.#parts;
    const { settings: key, time } = keysOf(runId);
    const kept = (await store.read(key)) as Bytes | undefined;
    const given = settings.length ? settings : (signed?.settings ?? kept);
    if (!given) throw new SettingsError("the instruction arrived without the run's settings");
    const terms = readTerms(given);
    const named = await runIdOf(given, program.layout.hash, program.modelId);
    const isOfRun = track === CLUSTERING_TRACK ? areEqual(runId, named) : false;
    if (!isOfRun && !(await isFederation(runId, named, terms)))
      throw new SettingsError("the received settings do not belong to the run");
    if (!kept) await makeRoom(store);
    if (!kept || !areEqual(kept, given))
      await store.write(new Map<string, unknown>([[key, given], [time, Date.now()]]));
    this.#privacy = terms.privacy;
    return [terms, given];
  }

  /** Returns the session at an instruction's start, after storing it. */
  async #sessionAt(
    instruction: TrainInstruction | EvaluateInstruction,
    { snapshot, tail }: Task,
    terms: RunTerms,
  ): Promise<Session> {
    const { layout } = this.#parts.program;
    const { runId, track, layoutHash } = instruction;
    if (!areEqual(layout.hash, layoutHash))
      throw new LayoutError(firstWord(layout.hash), firstWord(layoutHash));
    const header = { track: track === INTERCEPT_TRACK ? GLOBAL_TRACK : track, runId, layoutHash };
    const stored = await readSession(this.#parts.store, runId);
    const before = stored?.session ?? (await begin(header, layout));
    const goal =
      "startDigest" in instruction
        ? { round: instruction.round - 1, digest: instruction.startDigest }
        : { round: instruction.round, digest: instruction.digest };
    let caughtUp: Session;
    try {
      caughtUp = await catchUp(before, { snapshot, tail }, header, layout, goal);
    } catch (error) {
      if (!(error instanceof LedgerError)) throw error;
      throw new CatchUpError(error.message, goal.round, before.round);
    }
    const { wentBack, ...session } = caughtUp;
    const { store } = this.#parts;
    const { token, report } = stored ?? { token: new Uint8Array(), report: new Uint8Array() };
    const keys = keysOf(runId);
    await store.write(
      new Map<string, unknown>([
        [keys.session, { session, token, report }],
        [keys.time, Date.now()],
        [LATEST, runId],
        ...(wentBack
          ? [[keys.answered, afterRestore(await readAnswered(store, runId))] as const]
          : []),
      ]),
    );
    if (track !== CLUSTERING_TRACK)
      await (await this.#personalizer(runId, terms, session)).note(session);
    return session;
  }

  async #personalizer(
    runId: Bytes,
    terms: RunTerms,
    session: Session,
  ): Promise<Personalizer> {
    const learner = await this.learner(); // from here on, the refused examples are known
    const dataHash = await this.#parts.examples.hash(SPLIT.train);
    const common = commonState(session, learner.layout);
    return new Personalizer(this.#parts.store, learner, { runId, terms, dataHash, common });
  }

  async #latest(): Promise<{
    readonly runId: Bytes;
    readonly terms: RunTerms;
    readonly session: Session;
  } | null> {
    const { store } = this.#parts;
    const runId = (await store.read(LATEST)) as Bytes | undefined;
    const settings = runId && ((await store.read(keysOf(runId).settings)) as Bytes);
    const stored = runId && (await readSession(store, runId));
    if (!settings || !stored) return null;
    return { runId, terms: readTerms(settings), session: stored.session };
  }
}

function decodeInstruction(frame: Bytes): TrainInstruction | EvaluateInstruction {
  return kindOf(frame) === KIND.train ? decodeTrain(frame) : decodeEvaluate(frame);
}

function firstWord(hash: Bytes): number {
  return new DataView(hash.buffer, hash.byteOffset).getUint32(0);
}

/**
 * Returns columns with losses rounded to 32 bits; more bits would only reveal facts about examples.
 */
async function rounded(columns: Promise<EvaluationColumn[]>): Promise<EvaluationColumn[]> {
  return (await columns).map((one) => ({ ...one, meanLoss: Math.fround(one.meanLoss) }));
}

/** Returns the first examples of a split, up to the number introduced by the hello. */
function firstOnes(
  { scores, features, tokens, labels }: Represented,
  count: number,
): Represented {
  const all = labels.length || 1;
  const kept = Math.min(count, labels.length);
  return {
    scores: scores.slice(0, (scores.length / all) * kept),
    features: features.slice(0, (features.length / all) * kept),
    tokens: tokens.slice(0, (tokens.length / all) * kept),
    labels: labels.slice(0, kept),
  };
}
