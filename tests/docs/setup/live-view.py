# page
save_steps("runs/gpt")
