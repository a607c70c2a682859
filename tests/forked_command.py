"""Run a command in a process that a test forks: `python -IS forked_command.py SOCKET -m MODULE …`.

Shells start this script in place of Python, which would import the libraries again. The script
hands its arguments, folder, environment and streams to the test's `forked.command_server`, passes
signals on, and exits with the status of the forked process.
"""

import json
import os
import signal
import socket
import sys


def main() -> None:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.connect(sys.argv[1])
    command = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(channel, [command], [0, 1, 2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: channel.send(bytes([received])))
    status = int(channel.recv(16) or -signal.SIGKILL)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


main()
