/** The stream to the gateway: a WebSocket that proves the phone's identity and answers tasks. */

import type { Bytes } from "./bytes.ts";
import { decodeToPhone, encodeProof, encodeResult, type Task } from "./messages.ts";
import { answerBytes, proofBytes, sign, type OwnKey } from "./signing.ts";

const PROTOCOL = "samara.phone.1";
const VERSION = 1;
const LONGEST_WAIT = 300;
/** Close codes are 4000 plus the number of a gRPC status. */
const FINISHED = 4011;
const REJECTED = [4007, 4016];

/** The state of the stream; after the last two states, it is not reopened automatically. */
export type Connection =
  | "closed"
  | "connecting"
  | "waiting"
  | "attached"
  | "finished"
  | "rejected";

/** The callbacks of a stream's owner. */
export interface StreamOwner {
  /** Returns the maximum bytes of a received message; a longer one ends the stream. */
  mostBytes(): number;
  answer(task: Task): Promise<Bytes>;
  changed(connection: Connection): void;
}

/** A phone's stream, which is reopened after 1, 2, 4 … 300 s, each plus up to half at random. */
export class Stream {
  readonly #address: string;
  readonly #key: OwnKey;
  readonly #owner: StreamOwner;
  #socket: WebSocket | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #wait = 1;
  #isWanted = false;

  constructor(address: string, key: OwnKey, owner: StreamOwner) {
    this.#address = address;
    this.#key = key;
    this.#owner = owner;
  }

  /** Opens the stream at once, and again whenever it breaks. */
  open(): void {
    this.#isWanted = true;
    clearTimeout(this.#timer);
    if (this.#socket) return;
    this.#owner.changed("connecting");
    this.#connect();
  }

  /** Closes the stream until it is opened again. */
  close(): void {
    this.#isWanted = false;
    clearTimeout(this.#timer);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close(1000);
    this.#owner.changed("closed");
  }

  /** Retries at once, for example when the device is back on a network. */
  hurry(): void {
    if (this.#isWanted) this.open();
  }

  #connect(): void {
    const socket = new WebSocket(this.#address, PROTOCOL);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    let work = Promise.resolve();
    socket.onmessage = ({ data }) => {
      const message = new Uint8Array(data as ArrayBuffer);
      if (message.length > this.#owner.mostBytes()) {
        console.warn("the stream ends: a message of", message.length, "bytes");
        socket.close(4000);
        return;
      }
      work = work
        .then(() => this.#take(socket, message))
        .catch((error: unknown) => {
          console.warn("the stream ends:", error);
          socket.close(4000);
        });
    };
    socket.onclose = ({ code }) => {
      if (this.#socket !== socket) return;
      this.#socket = null;
      this.#ended(code);
    };
  }

  async #take(socket: WebSocket, message: Bytes): Promise<void> {
    const said = decodeToPhone(message);
    let reply: Bytes;
    if ("challenge" in said) {
      if (said.challenge.version !== VERSION) throw new Error("the gateway is of another version");
      const signature = await sign(this.#key, proofBytes(said.challenge.nonce));
      reply = encodeProof({ publicKey: this.#key.publicPem, signature });
      this.#owner.changed("attached");
    } else {
      const { number, instruction } = said.task;
      const frame = await this.#owner.answer(said.task);
      const signature = await sign(this.#key, await answerBytes(instruction, frame));
      reply = encodeResult({ number, frame, signature });
      this.#wait = 1;
    }
    if (socket.readyState === WebSocket.OPEN) socket.send(reply);
  }

  #ended(code: number): void {
    if (!this.#isWanted) return;
    if (code === FINISHED || REJECTED.includes(code)) {
      this.#isWanted = false;
      this.#owner.changed(code === FINISHED ? "finished" : "rejected");
      return;
    }
    this.#owner.changed("waiting");
    const seconds = this.#wait * (1 + Math.random() / 2);
    this.#timer = setTimeout(() => this.#connect(), 1000 * seconds);
    this.#wait = Math.min(2 * this.#wait, LONGEST_WAIT);
  }
}
