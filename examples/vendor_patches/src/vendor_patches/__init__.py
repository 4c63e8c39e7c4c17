"""Patches for megatron-core by Vendor; found by mcore-autopatch through the entry points in pyproject.toml."""
