"""How a phone finds out what is wrong with its gateway's address."""

import gc
import socket
import struct
import threading

from samara.devices.live.gateway_endpoint import GatewayEndpoint


def test_a_connection_that_is_reset_is_no_diagnosis() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset_every_connection() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # the test is over
                    return
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

        thread = threading.Thread(target=reset_every_connection, daemon=True)
        thread.start()
        endpoint = GatewayEndpoint(f"127.0.0.1:{server.getsockname()[1]}", None)
        for _ in range(50):
            assert endpoint.diagnose() in ("", "it does not speak TLS; is it the gateway's port?")
        gc.collect()  # an unclosed socket is a warning, and so an error
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_an_address_where_nobody_listens_is_no_diagnosis() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert GatewayEndpoint(f"127.0.0.1:{port}", None).diagnose() == ""
