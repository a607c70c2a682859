/** The client in a browser: key, program, examples, stream and models, for the page or an app. */

import { toHex, type Bytes } from "./bytes.ts";
import { columnOf } from "./columns.ts";
import { fetchFile, fetchIndex, fetchSize, forgetFiles, sizeOf } from "./download.ts";
import { PlainError, problemOf, ProgramError, StorageError, StoppedError } from "./errors.ts";
import { SPLIT } from "./instructions.ts";
import { readCode, register } from "./join.ts";
import { mostMessageBytes } from "./ledger.ts";
import { added } from "./local-steps.ts";
import { TASK_KIND, type Task } from "./messages.ts";
import { Model } from "./model.ts";
import { ExampleBook, type ExampleCounts, type ListedExample, type NewExample } from "./own-examples.ts";
import { Phone, type Models } from "./phone.ts";
import { epsilonLimit, epsilonSpent, limitEpsilon, whatStops } from "./private-reports.ts";
import { readProgram, type Program } from "./program.ts";
import type { Represented } from "./readout.ts";
import { toFloat32, zeroState } from "./replay.ts";
import { checkTexts, isSound } from "./rows.ts";
import { roundsOfFederation } from "./run-terms.ts";
import { readScenario } from "./signed-run.ts";
import { clientIndex, makeKey, type OwnKey } from "./signing.ts";
import { accuracy, probabilities } from "./softmax.ts";
import type { Store } from "./store.ts";
import type { Accuracies, Activity, Prediction, Status } from "./status.ts";
import { Stream, type Connection } from "./stream.ts";
import { hashOf, type ProgramIndex, type Row } from "./task.ts";

interface Joined {
  readonly key: OwnKey;
  readonly scenario: string;
  readonly isRegistered: boolean;
}

interface Loaded {
  readonly index: ProgramIndex;
  readonly program: Program;
  readonly model: Model;
  readonly book: ExampleBook;
  readonly phone: Phone;
}

const NOTHING: Activity = { name: "nothing", done: 0, of: 0 };
const NO_COUNTS: ExampleCounts = { splits: [0, 0, 0], refused: 0, labels: 0 };
const JOINED = "joined";
const PAUSED = "paused";
const SECONDS_TO_RETRY = 30;

/** The client. The page calls its methods, and is notified when its status changes. */
export class Client {
  readonly #store: Store;
  readonly #changed: () => void;
  #joined: Joined | null = null;
  #loaded: Promise<Loaded> | null = null;
  #mostBytes = mostMessageBytes(0);
  #stream: Stream | null = null;
  #connection: Connection = "closed";
  #activity: Activity = NOTHING;
  #accuracies: Accuracies | null = null;
  #offeredBytes = 0;
  #problem = "";
  #storageProblem = "";
  #isPaused = false;
  #isHeldBack = false;
  /** The end of the queue: one task, example or question runs at a time. */
  #work: Promise<unknown> = Promise.resolve();
  #waiting = 0;
  #hasIdleWork = false;
  #isIdle = false;

  /** @param changed function that is called when the status has changed. */
  constructor(store: Store, changed: () => void) {
    this.#store = store;
    this.#changed = changed;
  }

  /** Continues where the browser was closed. */
  async start(): Promise<void> {
    this.#joined = ((await this.#store.read(JOINED)) as Joined | undefined) ?? null;
    this.#isPaused = (await this.#store.read(PAUSED)) === true;
    if (this.#joined?.isRegistered) this.#begin();
    else void this.#showSize();
    this.#changed();
  }

  /**
   * Registers this browser with an invitation's code or link, and attaches.
   *
   * @throws InvitationError if the invitation cannot be used.
   */
  async join(link: string): Promise<void> {
    const code = await readCode(link);
    const begun = this.#joined ?? {
      key: await makeKey(),
      scenario: "",
      isRegistered: false,
    };
    await this.#keep(begun); // before the server knows the key, so that it is never lost
    const scenario = await register(code, begun.key);
    await this.#keep({ key: begun.key, scenario, isRegistered: true });
    this.#begin();
  }

  /** Receives the current problem with the store, or null when there is none any more. */
  storageChanged(problem: StorageError | null): void {
    const said = problem?.message ?? "";
    if (said === this.#storageProblem) return;
    this.#storageProblem = said;
    this.#changed();
  }

  /** Retries failed work at once, for example when the device is back on a network. */
  async hurry(): Promise<void> {
    if (!this.#joined?.isRegistered || this.#isStopped) return;
    if (!this.#loaded) return this.#begin();
    this.#stream?.hurry();
    this.#idle();
  }

  /**
   * Adds examples of the owner's, and returns the total number of examples.
   *
   * @throws PlainError if an example does not fit the task; then none is added.
   */
  async addExamples(examples: readonly NewExample[]): Promise<number> {
    return this.#alone(async () => {
      const { book, index } = await this.#load();
      if (!examples.every((one) => isSound(one, index.task))) throw new PlainError("example");
      await book.add(examples);
      this.#idle();
      return (await book.all()).length;
    });
  }

  /** Returns the owner's examples, oldest first. */
  async examples(): Promise<ListedExample[]> {
    return (await this.#load()).book.all();
  }

  /** Deletes an example. */
  async removeExample(id: string): Promise<void> {
    await this.#alone(async () => {
      await (await this.#load()).book.remove(id);
      this.#idle();
    });
  }

  /**
   * Returns the models' answers to a row.
   *
   * @throws PlainError if the row lacks a field of the task, or the model cannot read it.
   */
  async predict(row: Row): Promise<Prediction> {
    return this.#alone(async () => {
      const { program, index, phone, model } = await this.#load();
      checkTexts(row, index.task);
      const [numbers] = await model.represent([row], () => {});
      if (!numbers) throw new PlainError("unreadable");
      const example: Represented = { ...numbers, labels: Int32Array.of(0) };
      const models = await phone.models();
      const states = models ? [models.w, added(models.w, models.p)] : [];
      const weights = states.map((state) => toFloat32(added(state, program.start)));
      const [global, personal] = (await model.scorer(weights, example, [0])).map(probabilities);
      this.#do(NOTHING);
      return {
        labels: index.task.words.map((word) => word.trim()),
        base: probabilities(numbers.scores),
        global: global ?? null,
        personal: personal ?? null,
      };
    });
  }

  /** Stops all training and closes the stream, or reopens it; a closed tab stays paused. */
  async pause(isPaused: boolean): Promise<void> {
    this.#isPaused = isPaused;
    await this.#store.write(new Map([[PAUSED, isPaused]]));
    this.#stopOrGoOn();
  }

  /** Stops while a condition of the owner's, such as external power, is not met. */
  async holdBack(isHeldBack: boolean): Promise<void> {
    this.#isHeldBack = isHeldBack;
    this.#stopOrGoOn();
  }

  /** Limits the total ε of all reports; 0 means no limit. */
  async limitEpsilon(limit: number): Promise<void> {
    await limitEpsilon(this.#store, limit);
    this.#changed();
  }

  /** Leaves the run, and deletes key, examples, models and program from this browser. */
  async leave(): Promise<void> {
    this.#stream?.close();
    await this.#alone(async () => {
      this.#stream = null;
      this.#joined = this.#loaded = this.#accuracies = null;
      this.#isPaused = false;
      this.#problem = "";
      await this.#store.erase("");
      await forgetFiles();
    });
    this.#changed();
  }

  /** Returns everything that the page shows. */
  async status(): Promise<Status> {
    const loaded = this.#loaded && (await this.#loaded.catch(() => null));
    const models = loaded && (await loaded.phone.models());
    const counts = (await loaded?.book.counts()) ?? NO_COUNTS;
    const sent = (await this.#store.list("sent/")).map(([, one]) => one as { bytes: number });
    return {
      hasJoined: this.#joined?.isRegistered === true,
      client: this.#joined ? await clientIndex(this.#joined.key.publicPem) : -1,
      connection: this.#connection,
      isPaused: this.#isPaused,
      isHeldBack: this.#isHeldBack,
      activity: this.#activity,
      task: loaded && loaded.index.task,
      programBytes: loaded ? sizeOf(loaded.index) : this.#offeredBytes,
      run: models?.runId ?? "",
      round: models?.round ?? 0,
      rounds: models ? roundsOfFederation(models.terms) : 0,
      digest: models ? toHex(models.digest) : "",
      counts: counts.splits,
      refused: counts.refused,
      labels: counts.labels,
      accuracies: this.#accuracies,
      sent: {
        answers: sent.length,
        bytes: sent.reduce((sum, one) => sum + one.bytes, 0),
        epsilon: await epsilonSpent(this.#store),
      },
      epsilonLimit: await epsilonLimit(this.#store),
      stoppedBy: models && (await whatStops(this.#store, models.terms.privacy)),
      problem: this.#storageProblem || this.#problem || (loaded?.phone.problem ?? ""),
    };
  }

  /** Shows how large the program is, if the gateway says so, before anybody joins. */
  async #showSize(): Promise<void> {
    this.#offeredBytes = await fetchSize().catch(() => 0);
    this.#changed();
  }

  get #isStopped(): boolean {
    return this.#isPaused || this.#isHeldBack;
  }

  #stopOrGoOn(): void {
    if (this.#isStopped) this.#stream?.close();
    else if (this.#joined?.isRegistered) this.#begin();
    this.#changed();
  }

  async #keep(joined: Joined): Promise<void> {
    await this.#store.write(new Map([[JOINED, joined]]));
    this.#joined = joined;
  }

  #begin(): void {
    const { key } = this.#joined!;
    const address = new URL("/stream", location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    this.#stream ??= new Stream(address.href, key, {
      mostBytes: () => this.#mostBytes,
      answer: (task) => this.#alone(() => this.#answer(task)),
      changed: (connection) => {
        this.#connection = connection;
        this.#changed();
      },
    });
    this.#load().then(
      () => {
        if (!this.#isStopped) this.#stream?.open();
        this.#idle();
      },
      () => {},
    );
  }

  async #answer(task: Task): Promise<Bytes> {
    const { phone } = await this.#load();
    if (task.kind === TASK_KIND.train) this.#do({ name: "training", done: 0, of: 0 });
    if (task.kind === TASK_KIND.evaluate) this.#do({ name: "evaluating", done: 0, of: 0 });
    const frame = await phone.answer(task);
    this.#do(NOTHING);
    if (task.kind !== TASK_KIND.hello) this.#idle();
    return frame;
  }

  /** Takes the private rounds that are due, and evaluates the models, once nothing else waits. */
  #idle(): void {
    this.#hasIdleWork = true;
    setTimeout(() => {
      const isBusy = this.#waiting > 0 || this.#isStopped;
      if (!this.#hasIdleWork || isBusy || !this.#loaded) return;
      this.#hasIdleWork = false;
      this.#alone(async () => {
        const { phone, book } = await this.#load();
        if (!(await book.all()).length) return;
        this.#do({ name: "personal", done: 0, of: 0 });
        this.#isIdle = true;
        try {
          await phone.takePrivateRounds(() => this.#waiting > 1 || this.#isStopped);
          this.#hasIdleWork = this.#waiting > 1; // the rest runs later
          this.#accuracies = await this.#evaluated(await phone.models());
          this.#problem = "";
        } catch (error) {
          if (!(error instanceof StoppedError)) throw error;
          this.#hasIdleWork = true;
        } finally {
          this.#isIdle = false;
        }
        this.#do(NOTHING);
      }).catch((error: unknown) => this.#fail(error));
    });
  }

  /** Returns the accuracies on validation and test examples, which are never used for training. */
  async #evaluated(models: Models | null): Promise<Accuracies> {
    const { phone, book, program } = await this.#load();
    const learner = await phone.learner();
    const w = models?.w ?? zeroState(program.layout.size);
    const states = [null, w, models ? added(w, models.p) : w];
    const { labels } = program.readout;
    const counts = states.map(() => new Uint32Array(labels * labels));
    for (const split of [SPLIT.validation, SPLIT.test]) {
      const examples = await book.represented(split);
      for (const [which, state] of states.entries()) {
        const zero = zeroState(program.layout.size);
        const base = { ...learner, training: { ...learner.training, start: zero } };
        const column = state
          ? await columnOf(learner, "", state, examples)
          : await columnOf(base, "", zero, examples);
        column.counts.forEach((count, at) => (counts[which]![at]! += count));
      }
    }
    const [base, global, personal] = counts.map((one) => accuracy(one, labels));
    const examples = counts[0]!.reduce((sum, one) => sum + one, 0);
    return { examples, base: base!, global: global!, personal: personal! };
  }

  /** Runs a function after all earlier work is done. */
  async #alone<T>(work: () => Promise<T>): Promise<T> {
    this.#waiting++;
    const done = this.#work.then(work, work);
    this.#work = done.catch(() => {});
    try {
      return await done;
    } finally {
      this.#waiting--;
      if (!this.#waiting && this.#hasIdleWork) this.#idle();
    }
  }

  #do(activity: Activity): void {
    this.#activity = activity;
    this.#changed();
  }

  #fail(error: unknown): void {
    console.error(error);
    // storage errors are reported separately
    this.#problem = error instanceof StorageError ? "" : problemOf(error);
    if (error instanceof PlainError) setTimeout(() => void this.hurry(), 1000 * SECONDS_TO_RETRY);
    this.#do(NOTHING);
  }

  #load(): Promise<Loaded> {
    this.#loaded ??= this.#loadProgram().catch((error: unknown) => {
      this.#loaded = null;
      this.#fail(error);
      throw error;
    });
    return this.#loaded;
  }

  async #loadProgram(): Promise<Loaded> {
    const joined = this.#joined;
    if (!joined) throw new ProgramError("join first");
    const index = await fetchIndex();
    const manifest = await fetchFile(index.manifest, () => {});
    const program = await readProgram(new TextDecoder().decode(manifest));
    const hashes = (files: readonly { readonly sha256: string }[]): string =>
      files.map(({ sha256 }) => sha256).join();
    const named = hashes(program.manifest.weights ?? []);
    if (
      program.manifest.program_sha256 !== index.graph.sha256 ||
      named !== hashes(index.weights)
    )
      throw new ProgramError("the program is not the one that its manifest describes");
    const { layout, modelId, readout } = program;
    this.#mostBytes = mostMessageBytes(layout.size);
    const model = new Model(index, program, (done, of) => this.#do({ name: "loading", done, of }));
    const book = new ExampleBook(this.#store, {
      program: await hashOf(index),
      readout,
      represent: (...given) => model.represent(...given),
    });
    book.onProgress = (done, of) => this.#do({ name: "reading", done, of });
    book.shouldStop = () => this.#isStopped || (this.#isIdle && this.#waiting > 1);
    const { scenario } = joined;
    const phone = new Phone({
      program,
      scorer: model.scorer,
      client: await clientIndex(joined.key.publicPem),
      key: joined.key,
      store: this.#store,
      examples: book,
      signed: scenario ? await readScenario(scenario, layout.hash, modelId) : null,
      facts: { device: "browser", platform: navigator.userAgent },
    });
    this.#problem = "";
    return { index, program, model, book, phone };
  }
}
