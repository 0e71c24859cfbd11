def inspect():
    pass
