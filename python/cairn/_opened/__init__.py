"""An open store: what it consists of, and what its calls have in common."""
