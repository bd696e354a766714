# page
save_steps("STORE", (100, 200))
subprocess.run(["cp", "-r", "STORE", "OTHER"], check=True)
