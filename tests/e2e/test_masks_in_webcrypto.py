"""WebCrypto, in Node and in a browser, has the cipher suite of secure aggregation."""

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsers import dom_of, serve_folder

from shared.frames.masking import MaskingKeys
from shared.secure_aggregation.keys import (
    MASKING,
    SEALING,
    RoundKey,
    commit_to,
    digest_of_clients,
    fresh_seed,
    pair_of,
    unseal,
)
from shared.secure_aggregation.masks import mask_vector, unmask_sum
from shared.signing import is_signed_by, normalize_public_key

TESTS = Path(__file__).parents[1]
MODULE = TESTS / "webcrypto.mjs"
CALL = "{function}({given}).then(JSON.stringify)"
PAGE = """<!DOCTYPE html><body><pre id="made"></pre><script type="module">
import {{ {function} }} from "./webcrypto.mjs";
const made = document.getElementById("made");
{call}.then((text) => {{ made.textContent = text; }});
</script>"""

Run = Callable[[str, Any], Any]


def run_in_node(folder: Path, function: str, given: Any) -> Any:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node")
    call = CALL.format(function=function, given=json.dumps(given))
    code = f'import {{ {function} }} from "{MODULE.as_uri()}";\nconsole.log(await {call});'
    command = [node, "--input-type=module", "--eval", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_in_chromium(folder: Path, function: str, given: Any) -> Any:
    """What a page makes of it, served on the loopback, which is a secure context."""
    shutil.copy(MODULE, folder)
    call = CALL.format(function=function, given=json.dumps(given))
    (folder / "page.html").write_text(PAGE.format(function=function, call=call))
    with serve_folder(folder) as address:
        page = dom_of(f"{address}/page.html", folder / "profile")
    text = page.partition('<pre id="made">')[2].partition("</pre>")[0]
    assert text, page[:500]
    return json.loads(unescape(text))


@pytest.fixture(
    params=[
        pytest.param(run_in_node, id="node"),
        pytest.param(run_in_chromium, id="chromium", marks=pytest.mark.slow),
    ]
)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return partial(request.param, tmp_path)


def test_webcrypto_derives_the_keys_masks_ciphertexts_and_shares_of_the_golden_file(
    run: Run,
) -> None:
    golden = json.loads((TESTS / "golden" / "masks.json").read_text(encoding="utf-8"))
    made = run("derive", golden)
    assert made.pop("commitments") == [client["commitment"] for client in golden["clients"]]
    assert made == {key: golden[key] for key in made}
    assert made.keys() == {"clients_digest", "pairs", "masked", "shares"}


def test_a_client_with_webcrypto_and_one_of_ours_are_in_one_sum(run: Run) -> None:
    """Keys, signature and ciphertext are read, and masks cancel, those of one that left too."""
    token, ours, theirs = bytes(range(8)), 3, 2**32 - 9
    sealer, masker, seed = RoundKey.generate(), RoundKey.generate(), fresh_seed()
    vectors = np.array([[1, -2, 2**40, -(2**62)], [-5, 7, 2**61, 2**62]], np.int64)
    given = {
        "token": token.hex(),
        "client": theirs,
        "vector": [str(number) for number in vectors[1].tolist()],
        "other": {
            "client": ours,
            "sealing_key": sealer.public.hex(),
            "mask_key": masker.public.hex(),
        },
    }
    script = run("take", given)
    keys = MaskingKeys(
        *(token, theirs, bytes.fromhex(script["sealing_key"])),
        *(bytes.fromhex(script["mask_key"]), bytes.fromhex(script["commitment"])),
        *(script["device_key"].encode(), bytes.fromhex(script["signature"])),
    )
    assert MaskingKeys.decode(keys.encode()) == keys
    assert normalize_public_key(keys.device_key) == keys.device_key
    assert is_signed_by(keys.device_key, keys.signature, keys.signed)
    assert not is_signed_by(keys.device_key, keys.signature, keys.signed + b"!")
    pair = pair_of(digest_of_clients(token, (ours, theirs)), ours, theirs)
    shared = sealer.agree(keys.sealing_key, SEALING, pair)
    content = unseal(shared, bytes.fromhex(script["sealed"]), theirs, ours, token)
    their_seed, their_secret = content[:32], content[33:65]
    assert commit_to(their_seed) == keys.commitment
    assert RoundKey(their_secret).public == keys.mask_key
    masked = [
        mask_vector(vectors[0], ours, seed, {theirs: masker.agree(keys.mask_key, MASKING, pair)}),
        np.array([int(number) for number in script["masked"]], np.uint64),
    ]
    total = unmask_sum(masked, [seed, their_seed], {})
    assert total.tolist() == vectors.sum(axis=0).tolist()
    left = {ours: {theirs: RoundKey(their_secret).agree(masker.public, MASKING, pair)}}
    assert unmask_sum(masked[1:], [their_seed], left).tolist() == vectors[1].tolist()
