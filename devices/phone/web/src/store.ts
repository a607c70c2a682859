/**
 * What a phone keeps between messages and after its tab is closed, by text keys.
 *
 * Values are what structured clones can be: arrays of numbers, records of them, keys of WebCrypto.
 */

/** A store; what `write` is given is there as a whole or not at all once it returns. */
export interface Store {
  read(key: string): Promise<unknown>;
  write(changes: ReadonlyMap<string, unknown>): Promise<void>;
  /** The entries whose keys begin with a prefix, ascending by key. */
  list(prefix: string): Promise<(readonly [string, unknown])[]>;
  erase(prefix: string): Promise<void>;
}

const VALUES = "values";
const AFTER_ALL = "\uffff";

/** Opens the browser's store of a name, IndexedDB; it is made if it does not exist. */
export async function openStore(name: string): Promise<Store> {
  const opening = indexedDB.open(name, 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(VALUES);
  const database = await result(opening);
  database.onversionchange = () => database.close(); // so that it can be deleted elsewhere
  const begin = (mode: IDBTransactionMode): [IDBObjectStore, Promise<void>] => {
    const transaction = database.transaction(VALUES, mode, { durability: "strict" });
    return [transaction.objectStore(VALUES), completion(transaction)];
  };
  return {
    async read(key) {
      const [values, done] = begin("readonly");
      const value: unknown = await result(values.get(key));
      await done;
      return value;
    },
    async write(changes) {
      const [values, done] = begin("readwrite");
      for (const [key, value] of changes) values.put(value, key);
      await done;
    },
    async list(prefix) {
      const range = IDBKeyRange.bound(prefix, prefix + AFTER_ALL);
      const [values, done] = begin("readonly");
      const [keys, all] = [values.getAllKeys(range), values.getAll(range)];
      await done;
      return keys.result.map((key, at) => [String(key), all.result[at] as unknown] as const);
    },
    async erase(prefix) {
      const [values, done] = begin("readwrite");
      values.delete(IDBKeyRange.bound(prefix, prefix + AFTER_ALL));
      await done;
    },
  };
}

/** Returns a store in memory, which copies what it is given. */
export function memoryStore(): Store {
  const all = new Map<string, unknown>();
  const keys = (prefix: string): string[] =>
    [...all.keys()].filter((key) => key.startsWith(prefix)).sort();
  return {
    read: async (key) => structuredClone(all.get(key)),
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

function result<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function completion(transaction: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error);
  });
}
