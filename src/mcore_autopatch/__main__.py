"""``python -m mcore_autopatch``, the same as the command mcore-autopatch."""

import sys


def main() -> int:
    """Run the command line, or say in one line why it cannot be run."""
    try:
        from mcore_autopatch import cli
    except ImportError as error:
        sys.exit(f"mcore-autopatch: error: {error}; python -m pip install --force-reinstall mcore-autopatch")
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
