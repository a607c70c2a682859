"""The resident trainer: sessions on disk, the service on its socket, and what kill -9 leaves."""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from federations import Settings, config_of, grid_of, ledger_of
from flwr.app import Context, Message, RecordDict

from client.app import TRAINER
from client.app import app as client_app
from client.remote import RemoteTrainer
from client.resident import Resident, of_device
from client.service import served
from server.app import serve
from shared.config import RunConfig
from shared.errors import TrainerError
from shared.frames import Hello, Refusal
from simulations.engine import InProcessGrid
