# page
save_steps("runs/gpt", (100, 200))
