raise RuntimeError("the body of failing.py")
