def function(x):
    return ("target in a thread", x)
