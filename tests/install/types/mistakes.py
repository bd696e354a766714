"""Mistakes that a type checker must find."""

import cairn

store = cairn.open("runs/gpt", mode="a")
store.save("100", {})  # mistake
count: str = store.save(100, {}).written_bytes  # mistake
store.load({}).no_such_field  # mistake
cairn.open("runs/gpt", mode="a", no_such_option=1)  # mistake
