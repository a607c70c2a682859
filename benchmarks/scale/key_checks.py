"""The time in a round that a live server needs to check the keys of its clients.

In a round, each client's key is checked when the server looks for clients, and again when the
client's report arrives. `--checks` limits how many of them are timed; a round's seconds are then
computed from their mean.

Run with ``python -m benchmarks.scale.key_checks --keys 10 100 1000``.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from samara.server.live.keys import ClientKey, ClientKeys

_CHECKS_PER_CLIENT = 2


def register_keys(folder: Path, count: int) -> list[bytes]:
    """Register keys as if they had been registered long ago, and return the public keys (PEM)."""
    public_keys = []
    for number in range(count):
        public = ec.generate_private_key(ec.SECP256R1()).public_key()
        public_keys.append(
            public.public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        name = f"client-{number}"
        key = ClientKey(name, public_keys[-1].decode(), "2026-01-01T00:00:00+00:00")
        (folder / f"{name}.json").write_text(json.dumps(asdict(key), indent=1))
    long_ago = time.time() - 3600.0
    os.utime(folder, (long_ago, long_ago))
    return public_keys


def seconds_per_check(folder: Path, public_keys: list[bytes], checks: int) -> float:
    """Return the mean seconds of one check, after an unmeasured first check."""
    keys = ClientKeys(folder)
    keys.refusal_reason(public_keys[0])
    begin = time.perf_counter()
    for number in range(checks):
        if reason := keys.refusal_reason(public_keys[number % len(public_keys)]):
            raise RuntimeError(f"a registered key is refused: {reason}")
    return (time.perf_counter() - begin) / checks


def seconds_of_round(folder: Path, count: int, most_checks: int) -> tuple[float, float]:
    """Return the mean seconds of one check with `count` keys, and the seconds of a round's
    checks.
    """
    public_keys = register_keys(folder, count)
    checks = min(most_checks, _CHECKS_PER_CLIENT * count)
    seconds = seconds_per_check(folder, public_keys, checks)
    return seconds, seconds * _CHECKS_PER_CLIENT * count


def main() -> None:
    """Print the seconds of a check and of a round for each number of keys."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--checks", type=int, default=2000)
    arguments = parser.parse_args()
    print(f"{'keys':>6} {'ms a check':>11} {'s a round':>10}")
    for count in arguments.keys:
        with tempfile.TemporaryDirectory() as folder:
            seconds, in_round = seconds_of_round(Path(folder), count, arguments.checks)
        print(f"{count:6} {1000 * seconds:11.3f} {in_round:10.3f}")


if __name__ == "__main__":
    main()
