import os

__version__ = os.environ.get("FAKE_MEGATRON_VERSION", "0.16.1")
