"""Checks of permissions, certificates, client keys and cohort secrets in a run's folder."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.live.run_supervisor import FLOWER_FOLDER
from samara.server.rounds.cohort_sampling import COHORT_SECRET_FILE, read_cohort_secret
from samara.server.watch.dashboard import TOKEN_FILE
from samara.shared.check_result import OF_OTHERS, CheckResult, Outcome
from samara.shared.errors import SamaraError
from samara.shared.network.certificates import (
    CERTIFICATES_FOLDER,
    RENEWAL_TIME,
    authority_key,
    certificate_end,
    certificate_names,
    is_key_of,
    tls_files,
)

_SECRETS = (
    f"{CERTIFICATES_FOLDER}/*.key",
    f"{KEYS_FOLDER}/*.key",
    TOKEN_FILE,
    f"{FLOWER_FOLDER}/control.secret",
    f"{FLOWER_FOLDER}/superlink.db*",
    COHORT_SECRET_FILE,
    f"*/{COHORT_SECRET_FILE}",
)


def check_permissions(run: Path) -> Iterator[CheckResult]:
    """Check that this user owns the run, and that nobody else can read it or its secrets."""
    secrets = [file for pattern in _SECRETS for file in sorted(run.glob(pattern))]
    if os.name == "posix" and (owner := run.stat().st_uid) != os.getuid():
        finding = f"{run} belongs to user {owner}, but this command runs as user {os.getuid()}"
        remedy = "run this command and `samara server up` as the owner of the folder"
        yield CheckResult(Outcome.FAIL, "permissions", finding, remedy)
        return
    if run.stat().st_mode & OF_OTHERS:
        finding = f"other users of this machine can read {run}"
        yield CheckResult(Outcome.WARN, "permissions", finding, f"chmod 700 {run}")
    open_secrets = [file for file in secrets if file.stat().st_mode & OF_OTHERS]
    for file in open_secrets:
        finding = f"other users of this machine can read {file}"
        yield CheckResult(Outcome.FAIL, "permissions", finding, f"chmod 600 {file}")
    if not open_secrets:
        finding = f"only the owner can read the {len(secrets)} secret files"
        yield CheckResult(Outcome.PASS, "permissions", finding)


def check_certificates(run: Path) -> Iterator[CheckResult]:
    """Check the certificates that Samara made for the run, if any."""
    folder = run / CERTIFICATES_FOLDER
    tls = tls_files(folder)
    if not folder.is_dir():
        finding = "Samara has made no certificate for this run"
        remedy = "none needed with --cert or --insecure; otherwise start `samara server up`"
        yield CheckResult(Outcome.WARN, "certificate", finding, remedy)
        return
    if not tls.authority.exists():
        finding = f"{tls.authority}, with which clients verify the server, is missing"
        remedy = "copy ca.pem from the folder of any client, or restore a backup"
        yield CheckResult(Outcome.FAIL, "certificate", finding, remedy)
        return
    try:
        end = certificate_end(tls.authority)
        names = sorted(certificate_names(tls.certificate))
        server_end = certificate_end(tls.certificate)
        has_key = is_key_of(tls.key, tls.certificate)
    except SamaraError as error:
        remedy = "use `samara server keys rotate` if ca.key exists, or restore a backup"
        yield CheckResult(Outcome.FAIL, "certificate", str(error), remedy)
        return
    now = datetime.now(UTC)
    if end < now:
        finding = f"{tls.authority} expired on {end:%Y-%m-%d}: no client accepts the server"
        remedy = "start `samara server up`, and give every client the new ca.pem"
        yield CheckResult(Outcome.FAIL, "certificate", finding, remedy)
    elif not authority_key(folder).exists():
        finding = f"{authority_key(folder)} is missing, so that no certificate can be renewed"
        remedy = f"restore the file from a backup before {server_end:%Y-%m-%d}"
        yield CheckResult(Outcome.WARN, "certificate", finding, remedy)
    if not has_key:
        finding = f"{tls.key} is missing, or is not the key of {tls.certificate.name}"
        yield CheckResult(Outcome.FAIL, "certificate", finding, "use `samara server keys rotate`")
    elif server_end < now:
        finding = f"{tls.certificate} expired on {server_end:%Y-%m-%d}"
        remedy = "start `samara server up`, which renews it, or use `samara server keys rotate`"
        yield CheckResult(Outcome.FAIL, "certificate", finding, remedy)
    elif server_end < now + RENEWAL_TIME:
        finding = f"{tls.certificate} expires on {server_end:%Y-%m-%d}"
        remedy = "start `samara server up`, which renews the certificate while it serves the run"
        yield CheckResult(Outcome.WARN, "certificate", finding, remedy)
    else:
        finding = f"valid for {', '.join(names)} until {server_end:%Y-%m-%d}"
        yield CheckResult(Outcome.PASS, "certificate", finding)


def check_keys(run: Path) -> Iterator[CheckResult]:
    """Check the keys of clients."""
    keys = ClientKeys(run / KEYS_FOLDER)
    for damage in keys.find_damage():
        yield CheckResult(Outcome.FAIL, "keys", damage)
    known = keys.read_all()
    finding = f"{keys.count_clients()} clients may join, {sum(bool(k.revoked) for k in known)} were"
    yield CheckResult(Outcome.PASS, "keys", f"{finding} revoked")
    if private := sorted((run / KEYS_FOLDER).glob("*.key")):
        finding = f"{len(private)} private keys of clients are here, such as {private[0].name}"
        remedy = "delete each key after its client has received it"
        yield CheckResult(Outcome.WARN, "keys", finding, remedy)


def check_cohort_secret(store: Path, fraction: float) -> Iterator[CheckResult]:
    """Check the secret for sampling the cohorts of a live run.

    Args:
        store: folder of the run or of one of its clusters.
        fraction: share of the clients that form a cohort.
    """
    try:
        has_secret = bool(read_cohort_secret(store))
    except SamaraError as error:
        remedy = "restore a backup into another folder, and copy the file from there"
        yield CheckResult(Outcome.FAIL, "cohorts", str(error), remedy)
        return
    if has_secret:
        yield CheckResult(Outcome.PASS, "cohorts", "a secret decides which clients are sampled")
    elif fraction < 1:
        finding = (
            f"{store / COHORT_SECRET_FILE} is missing: the run's public seed decides which clients "
            "are sampled, so that a client can choose keys that are sampled often"
        )
        remedy = "copy the file from a backup; begin another run if an earlier version began this"
        yield CheckResult(Outcome.WARN, "cohorts", finding, remedy)
