/** The service worker, which opens the page without a network from its cached files. */

interface FetchEvent extends Event {
  readonly request: Request;
  respondWith(answer: Promise<Response>): void;
}

interface ExtendableEvent extends Event {
  waitUntil(work: Promise<unknown>): void;
}

const CACHE = "samara-page";
const LIST = "integrity.json";
/** Files that only browsers with WebGPU need; they are cached when first fetched. */
const OF_GRAPHICS = /webgpu|asyncify/;

/** Caches the page's files. */
async function keepAll(): Promise<void> {
  const files = Object.keys((await (await fetch(LIST)).json()) as Record<string, string>);
  const kept = files.filter((name) => name !== "index.html" && !OF_GRAPHICS.test(name));
  await (await caches.open(CACHE)).addAll(["/", ...kept]);
}

/** Returns a file of the page from the network, or else from the cache. */
async function answer(request: Request): Promise<Response> {
  const cache = await caches.open(CACHE);
  try {
    const found = await fetch(request);
    if (found.ok) await cache.put(request, found.clone());
    return found;
  } catch (error) {
    const kept = await cache.match(request, { ignoreSearch: true });
    if (!kept) throw error;
    return kept;
  }
}

self.addEventListener("install", (event) => (event as ExtendableEvent).waitUntil(keepAll()));
self.addEventListener("fetch", (event) => {
  const { request } = event as FetchEvent;
  const { origin, pathname } = new URL(request.url);
  const isPage = origin === location.origin && !/^\/(program|samara|stream)(\/|$)/.test(pathname);
  if (isPage && request.method === "GET") (event as FetchEvent).respondWith(answer(request));
});
