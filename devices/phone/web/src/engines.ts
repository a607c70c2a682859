/**
 * What computes the model: ONNX Runtime on the graphics processor by WebGPU, or in WebAssembly.
 *
 * Both are fetched when they are needed first, so that a browser has one of them alone.
 */

type Runtime = typeof import("./library/onnxruntime.mjs");

/** A way to compute, and what has it. */
export interface Engine {
  readonly name: "webgpu" | "wasm";
  load(): Promise<Runtime>;
}

/** What is asked of the browser's `navigator.gpu`. */
export interface Graphics {
  requestAdapter(): Promise<{ readonly info: { readonly isFallbackAdapter?: boolean } } | null>;
}

/** WebAssembly, which every browser has. */
export const WASM: Engine = { name: "wasm", load: () => import("./library/onnxruntime.mjs") };

/** The graphics processor. */
export const WEBGPU: Engine = {
  name: "webgpu",
  load: () => import("./library/onnxruntime-webgpu.mjs"),
};

/**
 * Returns the engines of this browser, the one to try first in front.
 *
 * @param graphics `navigator.gpu`, which only some browsers have. An adapter that is a program, and
 *   not a processor, is slower than WebAssembly, so it is not used.
 */
export async function enginesOf(graphics: Graphics | undefined): Promise<Engine[]> {
  const adapter = await graphics?.requestAdapter().catch(() => null);
  return adapter && !adapter.info.isFallbackAdapter ? [WEBGPU, WASM] : [WASM];
}

/**
 * Something that an engine makes; where making or using it fails, the next engine does.
 *
 * What it is made of is fetched first: where the network fails, no engine does.
 */
export class OnEngines<F, T> {
  readonly #engines: () => Promise<Engine[]>;
  readonly #fetch: () => Promise<F>;
  readonly #make: (fetched: F, engine: Engine) => Promise<T>;
  #left: Engine[] | null = null;
  #made: T | null = null;

  constructor(
    engines: () => Promise<Engine[]>,
    fetch: () => Promise<F>,
    make: (fetched: F, engine: Engine) => Promise<T>,
  ) {
    this.#engines = engines;
    this.#fetch = fetch;
    this.#make = make;
  }

  /** Returns what comes of it; one call at a time. Throws what the last engine, or fetching, does. */
  async use<R>(work: (made: T) => Promise<R>): Promise<R> {
    this.#left ??= await this.#engines();
    for (;;) {
      const fetched = this.#made === null ? await this.#fetch() : null;
      try {
        this.#made ??= await this.#make(fetched!, this.#left[0]!);
        return await work(this.#made);
      } catch (error) {
        this.#made = null;
        if (this.#left.length === 1) throw error;
        console.warn(`${this.#left.shift()!.name} is given up:`, error);
      }
    }
  }
}
