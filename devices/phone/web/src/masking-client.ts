/**
 * A client's part in the secure aggregation of a round, from fresh keys to the shares it reveals.
 *
 * In each round it gives one set of keys, one vector under its masks, a signature of one list of
 * survivors, and shares of one of two secrets of each neighbour (Bonawitz et al., 2017, figure 4;
 * client/protocol/masking_client.py). The secrets behind the masks are in memory only: a closed tab
 * has left the round.
 */

import { areEqual, concat, sha256, type Bytes } from "./bytes.ts";
import { FrameError, MaskingError } from "./errors.ts";
import * as frames from "./masking-frames.ts";
import {
  agree,
  commitTo,
  digestOfClients,
  makeRoundKey,
  maskVector,
  pairOf,
  seal,
  unseal,
  type RoundKey,
} from "./masking-keys.ts";
import { bucketOf, LEAST_CLIENTS, leastNumber, neighbourhoodOf } from "./neighbours.ts";
import type { PrivacyTerms } from "./privacy-terms.ts";
import { SHARE_BYTES, splitSecret } from "./secret-shares.ts";
import { readPublicKey, sign, type OwnKey, type PublicKey } from "./signing.ts";
import { encodeVectorReport, type PlainVector, type VectorReport } from "./vector.ts";
import { KIND, kindOf } from "./wire.ts";

const SEED_BYTES = 32;

/** The state of a round between messages. */
interface Round {
  readonly token: Bytes;
  readonly sealing: RoundKey;
  readonly masking: RoundKey;
  readonly seed: Bytes;
  /** The masking keys that were sent, as a frame. */
  readonly keys: Bytes;
  readonly listed?: Listed;
  /** Sealed shares for this client, by neighbour, and their frame. */
  readonly received?: ReadonlyMap<number, Bytes>;
  readonly shares?: Bytes;
  readonly isMasked?: true;
  /** The survivor list that was signed, and its frame. */
  readonly survivors?: { readonly frame: Bytes; readonly clients: ReadonlySet<number> };
}

/** The data derived from the list of keys: the client's bucket, or the round's single sum. */
interface Listed {
  readonly clients: readonly number[];
  readonly digest: Bytes;
  readonly neighbours: ReadonlyMap<number, Neighbour>;
  /** This client's share of its own seed. */
  readonly ownShare: Bytes;
}

interface Neighbour {
  readonly keys: frames.MaskingKeys;
  readonly device: PublicKey;
}

/** Answers the masking frames of runs with the same settings, and masks their reports. */
export class MaskingClient {
  readonly #client: number;
  readonly #key: OwnKey;
  readonly #privacy: PrivacyTerms;
  #round: Round | null = null;
  #used: Bytes = new Uint8Array();
  #asked: Bytes = new Uint8Array();
  #answered: Bytes = new Uint8Array();

  constructor(client: number, key: OwnKey, privacy: PrivacyTerms) {
    this.#client = client;
    this.#key = key;
    this.#privacy = privacy;
  }

  /**
   * Returns the answer to a frame; a repeated frame gets the same answer, and sealed shares none.
   *
   * @throws MaskingError if this client does not carry out the frame's request.
   * @throws FrameError if the frame is invalid.
   */
  async answer(frame: Bytes): Promise<Bytes> {
    if (!areEqual(frame, this.#asked)) {
      this.#asked = new Uint8Array();
      this.#answered = await this.#answer(frame);
      this.#asked = frame;
    }
    return this.#answered;
  }

  /**
   * Returns a report under this round's masks as a frame; it works once per round.
   *
   * @throws MaskingError if the round is not the current round, or its report is already masked.
   */
  async mask({ token, client, vector }: VectorReport<PlainVector>): Promise<Bytes> {
    const round = this.#roundOf(token);
    const { listed, received } = round;
    if (!listed || !received || round.isMasked)
      throw new MaskingError("the server asks for a masked report out of turn");
    const pairKeys = new Map<number, Bytes>();
    for (const one of received.keys()) {
      const { maskKey } = listed.neighbours.get(one)!.keys;
      const pair = pairOf(listed.digest, this.#client, one);
      pairKeys.set(one, await agree(round.masking.key, maskKey, "mask", pair));
    }
    const masked = await maskVector(vector, client, round.seed, pairKeys);
    this.#round = { ...round, isMasked: true };
    return encodeVectorReport({ token, client, vector: masked });
  }

  async #answer(frame: Bytes): Promise<Bytes> {
    const kind = kindOf(frame);
    switch (kind) {
      case KIND.keyRequest:
        return this.#sendKeys(frames.decodeKeyRequest(frame).token);
      case KIND.keyList:
      case KIND.bucketKeyList:
        return this.#sendShares(await this.#readKeyList(frame, kind));
      case KIND.sealedShares:
        return this.#keepShares(frame);
      case KIND.survivorList:
        return this.#sign(frame);
      case KIND.signatureList:
        return this.#reveal(frames.decodeSignatureList(frame));
      default:
        throw new FrameError(`a frame of kind ${kind} asks for no part of masking`);
    }
  }

  /** Returns this client's keys for a round, the same keys for a repeated request. */
  async #sendKeys(token: Bytes): Promise<Bytes> {
    if (areEqual(token, this.#used))
      throw new MaskingError("the keys of this round were used, and are forgotten");
    if (this.#round && areEqual(token, this.#round.token)) return this.#round.keys;
    const [sealing, masking] = [await makeRoundKey(), await makeRoundKey()];
    const seed = crypto.getRandomValues(new Uint8Array(SEED_BYTES));
    const own = {
      token,
      client: this.#client,
      sealingKey: sealing.point,
      maskKey: masking.point,
      commitment: await commitTo(seed),
      deviceKey: this.#key.publicPem,
    };
    const signature = await sign(this.#key, frames.signedKeys(own));
    const keys = frames.encodeMaskingKeys({ ...own, signature });
    this.#round = { token, sealing, masking, seed, keys };
    return keys;
  }

  /** Returns a round's list of keys, or that of the bucket that this client draws. */
  async #readKeyList(frame: Bytes, kind: number): Promise<frames.KeyList> {
    const { bucket, minimum } = this.#privacy;
    if (kind !== (bucket ? KIND.bucketKeyList : KIND.keyList))
      throw new MaskingError("the list of keys is not of this run's kind");
    const drawn = bucket ? frames.decodeBucketKeyList(frame) : null;
    const listed = drawn?.listed ?? frames.decodeKeyList(frame);
    const { token, clients, keys } = listed;
    const fewest = Math.max(minimum, LEAST_CLIENTS);
    if (clients.length < fewest || !clients.includes(this.#client))
      throw new MaskingError(`a list of ${clients.length} clients is too short, or without this one`);
    if (!drawn) return listed;
    const { digests } = drawn;
    const own = await bucketOf(this.#client, token, clients, digests, bucket);
    for (const one of keys) {
      const digest = digests[clients.indexOf(one.client)]!;
      if (!own.includes(one.client) || !areEqual(await sha256(frames.signedKeys(one)), digest))
        throw new FrameError("the list of keys is not that of this client's bucket");
    }
    return { token, clients: own, keys };
  }

  /** Returns the sealed shares of this client's secrets for its neighbours, once. */
  async #sendShares({ token, clients, keys }: frames.KeyList): Promise<Bytes> {
    const round = this.#roundOf(token);
    if (round.listed) throw new MaskingError("a second list of keys for a round");
    const neighbours = await this.#checkKeys({ token, clients, keys }, round);
    const points = keys.map((one) => one.client + 1);
    const threshold = leastNumber(points.length);
    const seeds = splitSecret(round.seed, points, threshold);
    const secrets = splitSecret(round.masking.secret, points, threshold);
    const digest = await digestOfClients(token, clients);
    const sealed = new Map<number, Bytes>();
    let ownShare: Bytes = new Uint8Array();
    for (const [at, { client, sealingKey }] of keys.entries()) {
      const [seedShare, keyShare] = [seeds[at]!, secrets[at]!];
      if (client === this.#client) {
        ownShare = seedShare;
        continue;
      }
      const pair = pairOf(digest, this.#client, client);
      const key = await agree(round.sealing.key, sealingKey, "shares", pair);
      const content = concat(seedShare, keyShare);
      sealed.set(client, await seal(key, content, this.#client, client, token));
    }
    this.#round = { ...round, listed: { clients, digest, neighbours, ownShare } };
    return frames.encodeSealedShares({ token, client: this.#client, sealed });
  }

  /** Returns the neighbourhood after checking that the list has its keys, signed. */
  async #checkKeys(
    { token, clients, keys }: frames.KeyList,
    round: Round,
  ): Promise<ReadonlyMap<number, Neighbour>> {
    const expected = await neighbourhoodOf(this.#client, token, clients);
    if (expected.join() !== keys.map(({ client }) => client).join())
      throw new MaskingError("the list of keys is not that of this client's neighbours");
    const neighbours = new Map<number, Neighbour>();
    for (const one of keys) {
      if (one.client === this.#client && !areEqual(frames.encodeMaskingKeys(one), round.keys))
        throw new MaskingError("the list of keys differs from the keys that this client sent");
      const device = await readPublicKey(new TextDecoder().decode(one.deviceKey));
      if (!device || !(await device.isOf(one.signature, frames.signedKeys(one))))
        throw new MaskingError(`the keys of client ${one.client} are not signed by its device`);
      neighbours.set(one.client, { keys: one, device });
    }
    const devices = new Set([...neighbours.values()].map(({ device }) => device.spki));
    if (devices.size < neighbours.size)
      throw new MaskingError("two clients of the list have the same device's key");
    return neighbours;
  }

  /** Stores the neighbours' shares for this client, which are decrypted when requested. */
  #keepShares(shares: Bytes): Bytes {
    const { token, client, sealed } = frames.decodeSealedShares(shares);
    const round = this.#roundOf(token);
    const { listed } = round;
    if (round.shares && areEqual(round.shares, shares)) return new Uint8Array(); // a repetition
    if (!listed || round.received || client !== this.#client)
      throw new MaskingError("sealed shares come out of turn, or are for another client");
    const areNeighbours = [...sealed.keys()].every((one) => listed.neighbours.has(one));
    if (!areNeighbours || sealed.has(this.#client))
      throw new MaskingError("sealed shares are from clients that are not neighbours");
    if (sealed.size + 1 < leastNumber(listed.neighbours.size))
      throw new MaskingError("too few neighbours are left to hide among");
    this.#round = { ...round, received: sealed, shares };
    return new Uint8Array();
  }

  /** Returns the signature of a round's only survivor list. */
  async #sign(frame: Bytes): Promise<Bytes> {
    const asked = frames.decodeSurvivorList(frame);
    const round = this.#roundOf(asked.token);
    const { listed, received, survivors } = round;
    if (!listed || !received || !round.isMasked || (survivors && !areEqual(survivors.frame, frame)))
      throw new MaskingError("a list of survivors before the masked report, or a second one");
    const clients = new Set(asked.survivors);
    const known = new Set(listed.clients);
    if (!clients.has(this.#client) || ![...clients].every((one) => known.has(one)))
      throw new MaskingError("the list of survivors lacks this client, or has clients outside the round");
    const { bucket, minimum } = this.#privacy;
    const fewest = Math.max(LEAST_CLIENTS, bucket ? leastNumber(bucket) : minimum);
    if (clients.size < Math.max(fewest, leastNumber(listed.clients.length)))
      throw new MaskingError(`${clients.size} survivors are too few to hide among`);
    for (const one of listed.neighbours.keys())
      if (clients.has(one) && one !== this.#client && !received.has(one))
        throw new MaskingError("a survivor has no mask with this client");
    const signature = await sign(this.#key, await frames.signedSurvivors(asked, listed.digest));
    this.#round = { ...round, survivors: { frame, clients } };
    return frames.encodeSurvivorSignature({ token: asked.token, client: this.#client, signature });
  }

  /**
   * Returns shares of one secret of each neighbour, and forgets this round's secrets.
   *
   * So many neighbours must have signed the same list that no other list can have as many
   * signatures.
   */
  async #reveal({ token, signatures }: frames.SignatureList): Promise<Bytes> {
    const round = this.#roundOf(token);
    const { listed, received, survivors } = round;
    if (!listed || !received || !survivors)
      throw new MaskingError("shares are asked for before a list of survivors is signed");
    const { neighbours, digest } = listed;
    const all = frames.decodeSurvivorList(survivors.frame);
    const signed = await frames.signedSurvivors(all, digest);
    if (signatures.size < leastNumber(neighbours.size))
      throw new MaskingError("too few neighbours have signed the list of survivors");
    for (const [signer, signature] of signatures) {
      const neighbour = survivors.clients.has(signer) ? neighbours.get(signer) : undefined;
      if (!neighbour || !(await neighbour.device.isOf(signature, signed)))
        throw new MaskingError(`client ${signer} has not signed this list of survivors`);
    }
    const seeds = new Map([[this.#client, listed.ownShare]]);
    const keys = new Map<number, Bytes>();
    for (const [sender, sealed] of received) {
      const pair = pairOf(digest, this.#client, sender);
      const { sealingKey } = neighbours.get(sender)!.keys;
      const key = await agree(round.sealing.key, sealingKey, "shares", pair);
      const content = await unseal(key, sealed, sender, this.#client, token);
      if (!content) continue; // the share was forged
      if (survivors.clients.has(sender)) seeds.set(sender, content.slice(0, SHARE_BYTES));
      else keys.set(sender, content.slice(SHARE_BYTES));
    }
    [this.#round, this.#used] = [null, token];
    return frames.encodeRevealedShares({ token, client: this.#client, seeds, keys });
  }

  #roundOf(token: Bytes): Round {
    if (!this.#round || !areEqual(this.#round.token, token))
      throw new MaskingError("this client has keys for another round");
    return this.#round;
  }
}
