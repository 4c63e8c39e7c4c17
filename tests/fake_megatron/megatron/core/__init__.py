from megatron.core.package_info import __version__  # noqa: F401
