# page
save_steps("runs/gpt")
# before block 2
tensors, weights = [torch.ones(3), torch.zeros(3)], [1, 3]
