"""The page in Chromium says if the browser stores nothing, or nothing more, and continues."""

import hashlib
import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from browsers import JOINED, chromium
from built_page import built_page
from driven_browser import driven
from gateways import Served

from samara.devices.gateway.page_server.join_relay import JoinRelay
from samara.devices.gateway.page_server.listening import PageServer
from samara.devices.gateway.page_server.page_app import PageApp
from samara.devices.gateway.page_server.published_files import INTEGRITY_FILE, page_files
from samara.shared.network.invitation import InvitationCode

pytestmark = pytest.mark.slow
REFUSING = "indexedDB.open = () => { throw new DOMException('no', 'SecurityError'); };\n"
CODE = json.dumps(str(InvitationCode(bytes(16), bytes(range(16)))))
JOINING = f"samara.join({CODE}).then(() => 'joined', (error) => error.message)"
TROUBLE = "!document.getElementById('trouble').hidden && document.body.innerText"

SHOWN = "['joining', 'elsewhere'].some((id) => document.getElementById(id)?.hidden === false)"


def _refusing_page(page: Path, folder: Path) -> Path:
    """A copy of the page whose worker refuses to store anything."""
    shutil.copytree(page, folder)
    worker = folder / "worker.js"
    worker.write_text(REFUSING + worker.read_text())
    listed = json.loads((folder / INTEGRITY_FILE).read_text())
    listed["worker.js"] = hashlib.sha256(worker.read_bytes()).hexdigest()
    (folder / INTEGRITY_FILE).write_text(json.dumps(listed))
    return folder


def test_a_browser_that_keeps_nothing_more_is_said_to(tmp_path: Path) -> None:
    browser, folder = chromium(), built_page()
    served = Served(lambda key: True)
    with ExitStack() as stack:
        stack.callback(served.close)

        def page_of(files: Path) -> str:
            server = PageServer(PageApp(served.gateway, page_files(files), JoinRelay(None), ""))
            port = served.run(server.start("127.0.0.1:0"))
            stack.callback(lambda: served.run(server.stop()))
            return f"http://127.0.0.1:{port}"

        tab = stack.enter_context(driven(browser, tmp_path / "profile"))
        tab.open(page_of(_refusing_page(folder, tmp_path / "refusing")))
        shown = tab.until(TROUBLE)
        assert "This browser does not let the page store data" in shown
        assert "Invitation" not in shown
        assert "does not let the page store data" in tab.run(JOINING)
        origin = page_of(folder)
        tab.open(origin)
        tab.until("!document.getElementById('joining').hidden")
        tab.call("Storage.overrideQuotaForOrigin", origin=origin, quotaSize=1)
        assert "no room left for this page" in tab.run(JOINING)
        assert "no room left for this page" in tab.until(TROUBLE)
        tab.call("Storage.overrideQuotaForOrigin", origin=origin)
        assert "no room" not in tab.run(JOINING)  # the key is kept; there is no such invitation
        tab.until("document.getElementById('trouble').hidden")
        tab.open("about:blank")  # the browser keeps the page for going back, and it is no phone
        tab.until("location.href === 'about:blank'")
        tab.open(origin)
        tab.until(SHOWN)
        assert tab.run("document.getElementById('elsewhere').hidden")
        tab.run(JOINED)  # without a program there is nothing to show of texts
        assert "Something went wrong: the gateway has no program" in tab.until(TROUBLE)
        assert "Your choice" in tab.run("document.body.innerText")
        assert "Your texts" not in tab.run("document.body.innerText")
