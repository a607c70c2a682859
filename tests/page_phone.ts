// What the page's phone makes of tasks, in Node, with numbers of examples that Python has computed.

import { fromHex, sha256, toHex, toUtf8 } from "./src/bytes.ts";
import { readCode } from "./src/join.ts";
import { problemOf, StorageError } from "./src/errors.ts";
import { enginesOf, OnEngines, WASM, WEBGPU, type Graphics } from "./src/engines.ts";
import { mostMessageBytes } from "./src/ledger.ts";
import type { Task } from "./src/messages.ts";
import { decodeToPhone, encodeProof, encodeResult } from "./src/messages.ts";
import { ExampleBook, type NewExample } from "./src/own-examples.ts";
import { Phone, type OwnExamples, type PhoneParts } from "./src/phone.ts";
import { limitEpsilon, whatStops } from "./src/private-reports.ts";
import { readProgram } from "./src/program.ts";
import { readoutScorer, type Represented } from "./src/readout.ts";
import { checkTexts, isSound, pastedRows, readRows } from "./src/rows.ts";
import {
  answerBytes,
  clientIndex,
  makeKey,
  proofBytes,
  readPublicKey,
  sign,
  toDer,
  type OwnKey,
} from "./src/signing.ts";
import { readScenario } from "./src/signed-run.ts";
import { StepSize, type Observation } from "./src/step-size.ts";
import { memoryStore, openStore } from "./src/store.ts";
import { Stream } from "./src/stream.ts";
import { hashOf, textOf, type ProgramIndex, type Row, type Task as RunTask } from "./src/task.ts";

interface GivenSplit {
  readonly scores: number[];
  readonly features: number[];
  readonly labels: number[];
  readonly hash: string;
}

interface GivenTask {
  readonly kind: number;
  readonly instruction: string;
  readonly tail?: string;
  readonly settings: string;
  readonly personal?: boolean;
}

interface GivenPhone {
  readonly manifest: string;
  readonly splits: GivenSplit[];
  readonly scenario?: string;
}

interface PhoneCase extends GivenPhone {
  readonly client: number;
  readonly tasks: (
    | GivenTask
    | "private rounds"
    | "one private round"
    | "restart"
    | "no room"
    | "room"
    | { readonly limit: number }
  )[];
}

/** What a phone is made of. */
async function partsOf(given: GivenPhone, key: OwnKey, client: number): Promise<PhoneParts> {
  const program = await readProgram(given.manifest);
  const splits = given.splits.map((one) => ({
    scores: Float32Array.from(one.scores),
    features: Float32Array.from(one.features),
    tokens: new Int32Array(),
    labels: Int32Array.from(one.labels),
  }));
  const examples: OwnExamples = {
    represented: async (split): Promise<Represented> => splits[split]!,
    hash: async (split) => given.splits[split]!.hash,
    count: async (split) => splits[split]!.labels.length,
  };
  const hashes = [program.layout.hash, program.modelId] as const;
  const signed = given.scenario ? await readScenario(given.scenario, ...hashes) : null;
  const facts = { browser: "none" };
  const scorer = readoutScorer(program.readout);
  return { program, scorer, client, key, store: memoryStore(), examples, signed, facts };
}

interface GivenStream extends GivenPhone {
  readonly address: string;
  readonly origin: string;
  readonly publicPem: string;
  readonly privateKey: string;
  readonly curve: string;
}

/** Attaches a phone to a gateway's page server, as a page of its origin does. */
export async function attach(given: GivenStream): Promise<void> {
  const way = { name: "ECDSA", namedCurve: given.curve };
  const key = await crypto.subtle.importKey("pkcs8", fromHex(given.privateKey), way, false, ["sign"]);
  const own = { pair: { privateKey: key } as CryptoKeyPair, publicPem: toUtf8(given.publicPem) };
  const phone = new Phone(await partsOf(given, own, await clientIndex(own.publicPem)));
  const OfNode = WebSocket as unknown as new (address: string, options: object) => WebSocket;
  globalThis.WebSocket = class extends OfNode {
    constructor(address: string, protocol: string) {
      super(address, { protocols: [protocol], headers: { origin: given.origin } });
    }
  } as unknown as typeof WebSocket;
  const changed = (connection: string): void => console.log(connection);
  const owner = {
    mostBytes: () => mostMessageBytes(0),
    answer: (task: Task) => phone.answer(task),
    changed,
  };
  new Stream(given.address, own, owner).open();
}

const functions = {
  /** The answers to tasks, the records of the private ledger, and the models in the end. */
  async phone(given: PhoneCase) {
    const parts = await partsOf(given, await makeKey(), given.client);
    const { store } = parts;
    const { write } = store;
    let now = 0;
    Date.now = () => ++now; // no two entries of the store are of the same time
    let phone = new Phone(parts);
    const answers: string[] = [];
    for (const task of given.tasks) {
      if (task === "restart") phone = new Phone(parts);
      else if (task === "no room") store.write = () => Promise.reject(new StorageError("full"));
      else if (task === "room") store.write = write;
      else if (task === "private rounds") await phone.takePrivateRounds(() => false);
      else if (task === "one private round") {
        let taken = 0;
        await phone.takePrivateRounds(() => taken++ > 0);
      } else if ("limit" in task) await limitEpsilon(store, task.limit);
      else answers.push(toHex(await phone.answer(taskOf(task))));
    }
    const models = await phone.models();
    const entries = await store.list("run/");
    const records = entries.filter(([key]) => key.includes("/record/"));
    return {
      answers,
      kept: entries.map(([key]) => key),
      problem: phone.problem,
      records: records.map(([, record]) => toHex(record as Uint8Array<ArrayBuffer>)),
      stoppedBy: models && (await whatStops(store, models.terms.privacy)),
      w: models ? Array.from(models.w, String) : [],
      p: models ? Array.from(models.p, String) : [],
    };
  },
  /** The engines of a browser whose `navigator.gpu` gives an adapter, none, or throws. */
  async engines(given: "missing" | "throws" | null | { readonly isFallbackAdapter?: boolean }) {
    const requestAdapter = async () => {
      if (given === "throws") throw new Error("lost");
      return given === "missing" ? null : given && { info: given };
    };
    const graphics: Graphics | undefined = given === "missing" ? undefined : { requestAdapter };
    return (await enginesOf(graphics)).map(({ name }) => name);
  },
  /** What is made and used, in turn, where some of it fails; it is used three times. */
  async onEngines(failing: string[]) {
    console.warn = () => {};
    const log: string[] = [];
    const doing = (what: string): void => {
      log.push(what);
      if (failing.includes(what)) throw new Error(what);
    };
    const model = new OnEngines(
      async () => [WEBGPU, WASM],
      async () => {
        if (failing.includes("fetch") && !log.length) doing("fetch");
      },
      async (_, { name }) => {
        doing(`make ${name}`);
        return name;
      },
    );
    for (const time of [1, 2, 3])
      await model
        .use(async (name) => doing(`use ${name} ${time}`))
        .catch((error: Error) => log.push(`failed: ${error.message}`));
    return log;
  },
  /** What the model makes of texts one by one; its library is the test's, and it has WebGPU. */
  async model(manifest: string, texts: string[]) {
    const { Model } = await import("./src/model.ts");
    const content = toUtf8("{}"); // of every file
    const file = { sha256: toHex(await sha256(content)), bytes: content.length };
    const gpu: Graphics = { requestAdapter: async () => ({ info: {} }) };
    Object.defineProperty(navigator, "gpu", { value: gpu });
    const cache = { match: async () => new Response(content) };
    Object.assign(globalThis, { crossOriginIsolated: false, caches: { open: async () => cache } });
    const index: ProgramIndex = {
      version: 1,
      manifest: file,
      graph: file,
      weights: [],
      tokenizer: { "tokenizer.json": file },
      task: { name: "t", text: "{text}", words: [], labels: [], fields: ["text"] },
      tokenization: { special: false, before: [], after: "", limit: 9, answers: [] },
      examples: [],
    };
    const model = new Model(index, await readProgram(manifest), () => {});
    const found: string[] = [];
    for (const text of texts)
      try {
        const [numbers] = await model.represent([{ text }], () => {});
        found.push(numbers ? Array.from(numbers.scores).join() : "refused");
      } catch (error) {
        found.push((error as Error).message);
      }
    return found;
  },
  /** A message of the gateway, read, and a phone's, written. */
  toPhone: (message: string) =>
    JSON.parse(
      JSON.stringify(decodeToPhone(fromHex(message)), (_, value: unknown) =>
        value instanceof Uint8Array ? toHex(value as Uint8Array<ArrayBuffer>) : value,
      ),
    ),
  proof: (publicKey: string, signature: string) =>
    toHex(encodeProof({ publicKey: fromHex(publicKey), signature: fromHex(signature) })),
  result: (number: number, frame: string, signature: string) =>
    toHex(encodeResult({ number, frame: fromHex(frame), signature: fromHex(signature) })),
  /** A new key's public half, its client index, and its signatures as proof and of an answer. */
  async key(nonce: string, instruction: string, frame: string) {
    const key = await makeKey();
    const answer = await answerBytes(fromHex(instruction), fromHex(frame));
    return {
      pem: toHex(key.publicPem),
      client: await clientIndex(key.publicPem),
      proof: toHex(await sign(key, proofBytes(fromHex(nonce)))),
      answer: toHex(await sign(key, answer)),
      extractable: key.pair.privateKey.extractable,
    };
  },
  /** Whether signatures are those of some bytes by a public key, PEM, and its one form. */
  async signatures(pem: string, signatures: string[], data: string) {
    const key = await readPublicKey(pem);
    const are = signatures.map((one) => key?.isOf(fromHex(one), fromHex(data)));
    return { spki: key?.spki ?? "", are: await Promise.all(are) };
  },
  der: (signature: string) => toHex(toDer(fromHex(signature))),
  rows: (text: string, task: RunTask) => readRows(text, task),
  pasted: (text: string) => pastedRows(text, "text", 1),
  textOf: (task: RunTask, row: Row) => textOf(task, row),
  hashes: (indices: ProgramIndex[]) => Promise.all(indices.map(hashOf)),
  async code(link: string) {
    const { trusted, secret } = await readCode(link);
    return { trusted: toHex(trusted), secret: toHex(secret) };
  },
  /**
   * Examples after additions and a deletion, and how often each went through the model, whose
   * tokenizer refuses some, and which stops before its reading of a number.
   */
  async book(additions: NewExample[][], removed: string, refused: string[], stopAt: number) {
    const passes: Record<string, number> = {};
    const sizes: number[] = [];
    const represent = async (rows: readonly Row[]) =>
      rows.map(({ text }, at) => {
        if (!at) sizes.push(rows.length);
        passes[text!] = (passes[text!] ?? 0) + 1;
        if (refused.includes(text!)) return null;
        const [scores, features] = [Float32Array.of(text!.length, 0), Float32Array.of(1, 2, 3)];
        return { scores, features, tokens: Int32Array.of(text!.length) };
      });
    const readout = { labels: 2, features: 3, contrasts: new Float32Array(2), tokens: 1 };
    const store = memoryStore();
    const encoder = { program: "p".repeat(64), readout, represent };
    let book = new ExampleBook(store, encoder);
    const stopped: string[] = [];
    for (const some of additions) {
      await book.add(some);
      book.shouldStop = () => sizes.length === stopAt;
      await book.represented(0).catch((error: Error) => stopped.push(error.constructor.name));
      book.shouldStop = () => false;
      for (const split of [0, 1, 2]) await book.represented(split);
      book = new ExampleBook(store, encoder); // as after a closed tab
    }
    const hash = await book.hash(0);
    const gone = (await book.all()).find(({ row }) => row["text"] === removed)!;
    await book.remove(gone.id);
    const { scores, labels, tokens } = await book.represented(0);
    const all = (await book.all()).map(({ row, label, split }) => ({ row, label, split }));
    const after = await book.hash(0);
    const refusedOnes = (await book.all()).flatMap(({ row, isRefused }) => (isRefused ? [row] : []));
    const counts = { ...(await book.counts()), train: await book.count(0), refusedOnes };
    const numbers = { scores: [...scores], labels: [...labels], tokens: [...tokens] };
    return { all, passes, ...numbers, isChanged: hash !== after, counts, sizes, stopped };
  },
  /** What an owner is told of a browser whose storage fails in a way, in turn, and what is kept. */
  async storage(ways: string[]) {
    console.warn = () => {};
    const said: string[] = [];
    Object.assign(globalThis, { indexedDB: failingStorage(ways) });
    try {
      const store = await openStore("s", (problem) => said.push(problem?.reason ?? "works"));
      while (ways.length)
        await store
          .write(new Map([["key", ways.length]]))
          .catch((error: Error) => said.push(problemOf(error)));
    } catch (error) {
      said.push(`not opened: ${(error as StorageError).reason}`);
    }
    return said;
  },
  /** What comes of the program's index, or is said, by the gateway's status (0: no network). */
  async index(status: number, keeps: "nothing" | "no files" | "the index") {
    console.warn = () => {};
    const content = JSON.stringify({ version: 1 });
    const cache = {
      match: async () => (keeps === "the index" ? new Response(content) : undefined),
      put: () => Promise.reject(new DOMException("", "QuotaExceededError")),
    };
    const open = () =>
      keeps === "nothing" ? Promise.reject(new DOMException("", "SecurityError")) : cache;
    const fetch = async () => {
      if (!status) throw new TypeError("Failed to fetch");
      return new Response(content, { status });
    };
    Object.assign(globalThis, { caches: { open }, fetch });
    const { fetchIndex } = await import("./src/download.ts");
    return fetchIndex().then(({ version }) => version, problemOf);
  },
  /** Whether what an app or a page adds is an example of the task. */
  sound: (examples: NewExample[], task: RunTask) => examples.map((one) => isSound(one, task)),
  /** What is said of rows whose answers an app asks for; an empty text if they are asked. */
  asked: (rows: Row[], task: RunTask) =>
    rows.map((row) => {
      try {
        checkTexts(row, task);
        return "";
      } catch (error) {
        return problemOf(error);
      }
    }),
  /** The tokens of a row by a tokenizer of its own, or what is said of it, and the letters read. */
  async tokens(texts: string[], limit: number, before: number[] | string = []) {
    const { RowTokenizer } = await import("./src/tokens.ts");
    const task = { name: "t", text: "{text}", words: [], labels: [], fields: ["text"] };
    const tokenization = { special: false, before, after: "", limit, answers: [] };
    const index = { task, tokenization, examples: [] } as unknown as ProgramIndex;
    const files = { "tokenizer.json": { pre_tokenizer: null }, "tokenizer_config.json": {} };
    const tokenizer = new RowTokenizer(index, files);
    return texts.map((text) => {
      try {
        return tokenizer.tokens({ text }).sequences[0]!.length;
      } catch (error) {
        return (error as Error).message;
      }
    });
  },
  /** η, clip, the interval of curvature and the round to go back to, after every observation. */
  stepSize(rounds: number, given: number | null, epsilon: number, observed: Observation[]) {
    let size = new StepSize(rounds, given, epsilon);
    return observed.map((one) => {
      size = size.after({ ...one, loss: one.loss ?? Infinity });
      return [size.learningRate, size.clip, size.curvatureEvery(4, "central"), size.backTo];
    });
  },
};

/** What a browser's IndexedDB does, in ways that are taken out of a list: to open, then to write. */
function failingStorage(ways: string[]): object {
  const tell = (handler: (() => void) | null) => setTimeout(() => handler?.());
  const database = {
    transaction() {
      const way = ways.shift()!;
      if (way === "closed") throw new DOMException("", "InvalidStateError");
      const transaction = {
        onabort: null as (() => void) | null,
        oncomplete: null as (() => void) | null,
        error: way === "none" ? null : new DOMException("", way),
        abort() {},
        objectStore: () => ({
          put() {
            if (way === "DataCloneError") throw new DOMException("not kept", way);
          },
        }),
      };
      tell(() => (way === "works" ? transaction.oncomplete : transaction.onabort)?.());
      return transaction;
    },
  };
  return {
    open() {
      const way = ways.shift()!;
      if (way === "throws") throw new DOMException("", "SecurityError");
      const opening: Record<string, unknown> = { result: database, error: new DOMException("", way) };
      const event = { works: "onsuccess", blocked: "onblocked" }[way] ?? "onerror";
      tell(() => (opening[event] as () => void)());
      return opening;
    },
  };
}

function taskOf({ kind, instruction, tail, settings, personal }: GivenTask): Task {
  return {
    number: 1,
    kind,
    instruction: fromHex(instruction),
    snapshot: new Uint8Array(),
    tail: fromHex(tail ?? ""),
    settings: toUtf8(settings),
    personal: personal ?? false,
    shares: new Uint8Array(),
  };
}

type Case = [keyof typeof functions, ...unknown[]];

/** The results of cases, as JSON; of an error its class. */
export async function resultsOf(cases: Case[]): Promise<string> {
  console.warn = () => {};
  const results: unknown[] = [];
  for (const [name, ...given] of cases)
    try {
      results.push(await (functions[name] as (...given: unknown[]) => unknown)(...given));
    } catch (error) {
      results.push((error as Error).constructor.name);
    }
  return JSON.stringify(results);
}
