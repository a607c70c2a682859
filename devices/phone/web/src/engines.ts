/**
 * The engines that compute the model: ONNX Runtime on the graphics processor (WebGPU) or in
 * WebAssembly.
 *
 * An engine is fetched when it is first needed, so that a browser fetches only one engine.
 */

type Runtime = typeof import("./library/onnxruntime.mjs");

/** An engine, and the function that loads it. */
export interface Engine {
  readonly name: "webgpu" | "wasm";
  load(): Promise<Runtime>;
}

/** The part of the browser's `navigator.gpu` that is used here. */
export interface Graphics {
  requestAdapter(): Promise<{ readonly info: { readonly isFallbackAdapter?: boolean } } | null>;
}

/** WebAssembly, available in every browser. */
export const WASM: Engine = { name: "wasm", load: () => import("./library/onnxruntime.mjs") };

/** The graphics processor. */
export const WEBGPU: Engine = {
  name: "webgpu",
  load: () => import("./library/onnxruntime-webgpu.mjs"),
};

/**
 * Returns the engines of this browser, the preferred one first.
 *
 * @param graphics `navigator.gpu`, which only some browsers have. A software adapter is slower than
 *   WebAssembly, so it is not used.
 */
export async function enginesOf(graphics: Graphics | undefined): Promise<Engine[]> {
  const adapter = await graphics?.requestAdapter().catch(() => null);
  return adapter && !adapter.info.isFallbackAdapter ? [WEBGPU, WASM] : [WASM];
}

/**
 * An object made by an engine; if making or using it fails, the next engine takes over.
 *
 * Its inputs are fetched first, because no engine helps if the network fails.
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

  /**
   * Returns the result of some work with the object, one call at a time. Throws the error of the
   * last engine or of the download.
   */
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
        console.warn(`${this.#left.shift()!.name} is not used any more:`, error);
      }
    }
  }
}
