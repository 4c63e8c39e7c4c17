"""Every reproduction on every release of megatron-core: `run` measures, `cells` runs in one process, `draw` draws."""
