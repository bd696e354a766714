# page
os.mkdir("DIR")
