"""The bugs as small programs that run on a CPU: one file per patch, under the same name."""
