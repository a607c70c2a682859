/**
 * The interface for apps that show this page in a WebView: `window.samara`.
 *
 * `version` is raised when an existing member changes, but not when one is added.
 */

import type { Prediction, Status } from "./status.ts";
import type { ListedExample, NewExample } from "./own-examples.ts";
import type { Row } from "./task.ts";
import { TEXTS } from "./texts.ts";
import type { Call, Said } from "./worker.ts";

/** The methods for apps. A promise is rejected with an `Error` whose message may be shown. */
export interface Samara {
  readonly version: 1;
  /** Registers this browser with an invitation's link or code, and attaches to the gateway. */
  join(link: string): Promise<void>;
  /** Adds an example of the owner's; an existing text gets the new label. */
  addExample(row: Row, label: number): Promise<void>;
  /** Returns label probabilities under the base, the global and the private model. */
  predict(row: Row): Promise<Prediction>;
  /** Returns the client's current activity and progress. */
  status(): Promise<Status>;
  /** Leaves the run and deletes everything from this browser. */
  leave(): Promise<void>;
}

declare global {
  interface Window {
    samara: Samara;
  }
}

/** A refused call, with a message for the owner. */
export class CallError extends Error {}

const SLOW_SECONDS = 15;

/** The worker's client, as called by the page. */
export class WorkerClient {
  readonly #worker: Worker;
  readonly #ready: Promise<void>;
  readonly #open = new Map<number, (said: Said) => void>();
  #calls = 0;

  /**
   * @param onEvent function that is called when the status has changed, or another tab is the
   *   phone.
   * @param onProblem function that receives the reason why calls fail, or an empty text once they
   *   work.
   */
  constructor(
    onEvent: (event: "ready" | "changed" | "elsewhere") => void,
    onProblem: (message: string) => void,
  ) {
    this.#worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    const slow = setTimeout(() => onProblem(TEXTS.reasons.slow), 1000 * SLOW_SECONDS);
    this.#ready = new Promise((resolve, reject) => {
      const fail = (message: string): void => {
        clearTimeout(slow);
        onProblem(message);
        reject(new CallError(message));
      };
      this.#worker.onerror = () => fail(TEXTS.reasons.script);
      this.#worker.onmessage = ({ data }: MessageEvent<Said>) => {
        if ("failed" in data) return fail(data.failed);
        if ("event" in data) {
          if (data.event !== "changed") clearTimeout(slow);
          if (data.event === "ready") {
            this.#worker.onerror = null; // later failures fail a single call
            onProblem("");
            resolve();
          }
          onEvent(data.event);
          return;
        }
        this.#open.get(data.id)?.(data);
        this.#open.delete(data.id);
      };
    });
    this.#ready.catch(() => {}); // callers and the page are told separately
  }

  join = (link: string): Promise<void> => this.#call("join", link);
  addExamples = (examples: readonly NewExample[]): Promise<number> =>
    this.#call("addExamples", examples);
  examples = (): Promise<ListedExample[]> => this.#call("examples");
  removeExample = (id: string): Promise<void> => this.#call("removeExample", id);
  predict = (row: Row): Promise<Prediction> => this.#call("predict", row);
  pause = (isPaused: boolean): Promise<void> => this.#call("pause", isPaused);
  holdBack = (isHeldBack: boolean): Promise<void> => this.#call("holdBack", isHeldBack);
  limitEpsilon = (limit: number): Promise<void> => this.#call("limitEpsilon", limit);
  leave = (): Promise<void> => this.#call("leave");
  status = (): Promise<Status> => this.#call("status");

  /** Ends the worker, so that another tab can become the phone at once. */
  end(): void {
    this.#worker.terminate();
  }

  /** Returns the methods for apps. */
  forApps(): Samara {
    return Object.freeze<Samara>({
      version: 1,
      join: this.join,
      addExample: async (row, label) => void (await this.addExamples([{ row, label }])),
      predict: this.predict,
      status: this.status,
      leave: this.leave,
    });
  }

  async #call<T>(name: Call["name"], ...given: readonly unknown[]): Promise<T> {
    await this.#ready;
    const id = this.#calls++;
    const said = new Promise<Said>((resolve) => this.#open.set(id, resolve));
    this.#worker.postMessage({ id, name, given } satisfies Call);
    const answer = await said;
    if ("error" in answer) throw new CallError(answer.error);
    return ("result" in answer ? answer.result : undefined) as T;
  }
}
