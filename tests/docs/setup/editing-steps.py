# page
save_steps("runs/gpt", (50, 100, 200, 300))
