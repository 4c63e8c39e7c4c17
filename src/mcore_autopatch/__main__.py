"""``python -m mcore_autopatch``, the same as the command mcore-autopatch."""

import sys

if __name__ == "__main__":
    try:
        from mcore_autopatch.cli import main
    except ImportError as error:
        sys.exit(f"mcore-autopatch: error: {error}; python -m pip install --force-reinstall mcore-autopatch")
    sys.exit(main())
