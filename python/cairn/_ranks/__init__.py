"""The ranks that use a store together, and the part of a sharded tensor that each of them holds."""
