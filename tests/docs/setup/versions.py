# page
save_steps("runs/gpt")
with cairn.open("runs/gpt", mode="a") as store:
    store.untag("best")
state = make_state()
