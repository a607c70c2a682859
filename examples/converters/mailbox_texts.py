"""Conversion of an mbox file to rows of plain texts, with the sender and the time of each mail.

    python examples/converters/mailbox_texts.py sent.mbox --out mails.jsonl

Most mail programs can export mbox. Exports of chat programs can often be converted to mbox. Each
mail with a plain part becomes a row ``{"user": …, "time": …, "text": …}``, which
`samara simulate --set task=texts --set data.split=time` reads.

Quoted lines (which begin with ``>``) are left out, because somebody else wrote them. The signature
(everything after the line ``-- ``) is left out, because nobody types it again. Mails without
sender, date or remaining text are only counted.
"""

import argparse
import json
import mailbox
import sys
from collections.abc import Iterator
from contextlib import closing
from email.message import Message
from email.utils import parseaddr, parsedate_to_datetime
from pathlib import Path

SIGNATURE = "-- "
"""Line that separates a mail's text from its signature (RFC 3676, section 4.3)."""


def rows_of(file: Path) -> Iterator[dict[str, object] | None]:
    """Yield the row of each mail in an mbox file; None for a mail without sender, date or text."""
    with closing(mailbox.mbox(file, create=False)) as mails:
        for mail in mails:
            yield _row(mail)


def _row(mail: Message) -> dict[str, object] | None:
    user = parseaddr(str(mail.get("From", "")))[1].lower()
    text = own_words(_plain_text(mail))
    try:
        time = parsedate_to_datetime(str(mail["Date"])).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return {"user": user, "time": time, "text": text} if user and text else None


def own_words(text: str) -> str:
    """Return a mail's text without quoted lines and without the signature."""
    lines = text.replace("\r\n", "\n").split("\n")
    if SIGNATURE in lines:
        lines = lines[: lines.index(SIGNATURE)]
    return "\n".join(line for line in lines if not line.startswith(">")).strip()


def _plain_text(mail: Message) -> str:
    for part in mail.walk():
        if part.get_content_type() == "text/plain" and not part.get_filename():
            content = part.get_payload(decode=True)
            if isinstance(content, bytes):
                try:
                    return content.decode(part.get_content_charset() or "utf-8", errors="replace")
                except LookupError:  # an unknown character set
                    return content.decode("utf-8", errors="replace")
    return ""


def main() -> None:
    """Convert the mbox file that is named on the command line."""
    parser = argparse.ArgumentParser(description="Convert an mbox file to rows of plain texts.")
    parser.add_argument("mbox", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, a new file")
    arguments = parser.parse_args()
    if not arguments.mbox.is_file():
        sys.exit(f"{arguments.mbox}: no such file; export the mails as mbox")
    if arguments.out.exists():
        sys.exit(f"{arguments.out}: exists already; give a new file")
    rows = list(rows_of(arguments.mbox))
    found = [row for row in rows if row is not None]
    if not found:
        sys.exit(f"{arguments.mbox}: none of {len(rows)} mails has sender, date and text")
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found)
    arguments.out.write_text(lines, encoding="utf-8")
    print(f"{arguments.out}: {len(found)} mails; left out: {len(rows) - len(found)}")


if __name__ == "__main__":
    main()
