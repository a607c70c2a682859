"""The process of Flower's SuperNode, which ends when its parent process ends."""

import sys

from devices.live.processes import exit_with_parent


def main() -> None:
    """Run ``flower-supernode`` with the arguments after the parent's process id."""
    parent, *arguments = sys.argv[1:]
    exit_with_parent(int(parent))
    from shared.flower_compat import flower_supernode

    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


if __name__ == "__main__":
    main()
