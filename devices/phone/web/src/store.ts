/**
 * A phone's store for data between messages and after its tab is closed, with text keys.
 *
 * Values must be structured-cloneable: arrays of numbers, records of them, WebCrypto keys.
 */

import { StorageError } from "./errors.ts";

/** A store; the data given to `write` are stored completely, or not at all, once it returns. */
export interface Store {
  read(key: string): Promise<unknown>;
  /** The values of many keys at once; undefined for missing keys. */
  readAll(keys: readonly string[]): Promise<unknown[]>;
  write(changes: ReadonlyMap<string, unknown>): Promise<void>;
  /** The entries whose keys begin with a prefix, ascending by key. */
  list(prefix: string): Promise<(readonly [string, unknown])[]>;
  erase(prefix: string): Promise<void>;
}

const VALUES = "values";
const FULL = "QuotaExceededError";
const AFTER_ALL = "\uffff";

/**
 * Opens the browser's IndexedDB store with a name; creates it if missing.
 *
 * @param noted function that receives the reason of a failed access, and null after each write.
 * @throws StorageError here and at every call if the browser does not store the data.
 */
export async function openStore(
  name: string,
  noted: (problem: StorageError | null) => void = () => {},
): Promise<Store> {
  const database = await opened(name).catch(failed);
  database.onversionchange = () => database.close(); // so that it can be deleted elsewhere
  database.onclose = () => noted(new StorageError("lost"));
  const within = async <T>(
    mode: IDBTransactionMode,
    work: (values: IDBObjectStore) => T,
  ): Promise<T> => {
    try {
      const found = await transacted(database, mode, work);
      if (mode === "readwrite") noted(null);
      return found;
    } catch (error) {
      const problem = asStorageError(error);
      if (problem instanceof StorageError) noted(problem);
      throw problem;
    }
  };
  return {
    async read(key) {
      const request = await within("readonly", (values) => values.get(key));
      return request.result as unknown;
    },
    async readAll(keys) {
      const requests = await within("readonly", (values) => keys.map((key) => values.get(key)));
      return requests.map(({ result }) => result as unknown);
    },
    async write(changes) {
      await within("readwrite", (values) => {
        for (const [key, value] of changes) values.put(value, key);
      });
    },
    async list(prefix) {
      const range = rangeOf(prefix);
      const [keys, all] = await within(
        "readonly",
        (values) => [values.getAllKeys(range), values.getAll(range)] as const,
      );
      return keys.result.map((key, at) => [String(key), all.result[at] as unknown] as const);
    },
    async erase(prefix) {
      await within("readwrite", (values) => values.delete(rangeOf(prefix)));
    },
  };
}

function rangeOf(prefix: string): IDBKeyRange {
  return IDBKeyRange.bound(prefix, prefix + AFTER_ALL);
}

async function opened(name: string): Promise<IDBDatabase> {
  const opening = indexedDB.open(name, 1);
  return new Promise((resolve, reject) => {
    opening.onupgradeneeded = () => opening.result.createObjectStore(VALUES);
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
    opening.onblocked = () => reject(new StorageError("blocked"));
  });
}

function failed(error: unknown): never {
  console.warn("no storage:", error);
  const isFull = (error as DOMException | null)?.name === FULL;
  throw error instanceof StorageError ? error : new StorageError(isFull ? "full" : "refused");
}

/** Returns a storage error for the browser's access errors; other errors are returned unchanged. */
function asStorageError(error: unknown): unknown {
  if (error !== null && !(error instanceof DOMException)) return error;
  if (error?.name === "DataCloneError") return error;
  console.warn("storage fails:", error);
  return new StorageError(error?.name === FULL ? "full" : "lost");
}

/** Returns a store in memory, which copies its values. */
export function memoryStore(): Store {
  const all = new Map<string, unknown>();
  const keys = (prefix: string): string[] =>
    [...all.keys()].filter((key) => key.startsWith(prefix)).sort();
  return {
    read: async (key) => structuredClone(all.get(key)),
    readAll: async (keys) => keys.map((key) => structuredClone(all.get(key))),
    async write(changes) {
      for (const [key, value] of structuredClone(new Map(changes))) all.set(key, value);
    },
    list: async (prefix) =>
      keys(prefix).map((key) => [key, structuredClone(all.get(key))] as const),
    async erase(prefix) {
      for (const key of keys(prefix)) all.delete(key);
    },
  };
}

/**
 * Returns the results of some requests once all are complete; nothing is stored if the work throws.
 */
function transacted<T>(
  database: IDBDatabase,
  mode: IDBTransactionMode,
  work: (values: IDBObjectStore) => T,
): Promise<T> {
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(VALUES, mode, { durability: "strict" });
    transaction.onabort = () => reject(transaction.error);
    try {
      const asked = work(transaction.objectStore(VALUES));
      transaction.oncomplete = () => resolve(asked);
    } catch (error) {
      reject(error);
      transaction.abort();
    }
  });
}
