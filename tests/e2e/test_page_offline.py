"""The page in Chromium opens without a network after its first visit."""

from pathlib import Path

import pytest
from browsers import chromium
from built_page import built_page
from driven_browser import driven
from gateways import Served

from samara.devices.gateway.page_server.join_relay import JoinRelay
from samara.devices.gateway.page_server.listening import PageServer
from samara.devices.gateway.page_server.page_app import PageApp
from samara.devices.gateway.page_server.published_files import page_files

pytestmark = pytest.mark.slow
KEPT = "navigator.serviceWorker.getRegistration().then((one) => one?.active?.state === 'activated')"
SHOWN = "!document.getElementById('joining').hidden"


def test_the_page_opens_without_a_network(tmp_path: Path) -> None:
    browser, folder = chromium(), built_page()
    served = Served(lambda key: True)
    server = PageServer(PageApp(served.gateway, page_files(folder), JoinRelay(None), ""))
    origin = f"http://127.0.0.1:{served.run(server.start('127.0.0.1:0'))}"
    try:
        with driven(browser, tmp_path / "profile") as tab:
            tab.open(origin)
            tab.until(SHOWN)
            tab.until(KEPT)
            served.run(server.stop())
            tab.open("about:blank")
            tab.until("location.href === 'about:blank'")
            tab.open(origin)
            tab.until(SHOWN)
    finally:
        served.close()
