# page
with cairn.open("runs/gpt", mode="a") as store:
    store.save(100, state, tuning=cairn.SaveTuning(statistics=True))
