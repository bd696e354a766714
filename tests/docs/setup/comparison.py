# page
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
step = 0
