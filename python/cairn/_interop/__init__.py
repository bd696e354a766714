"""The part of `kv-admin import` and `export` that reads and writes files of torch."""
