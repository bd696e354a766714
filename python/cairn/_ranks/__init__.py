"""The ranks that use a store together, and which part of a sharded tensor each of them holds."""
