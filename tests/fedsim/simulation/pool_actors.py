"""What the pool's tests put into it; Ray workers import it from the checkout."""


class Broken:
    def __init__(self):
        raise ValueError("no data here")


class Adder:
    def add(self, a, b):
        return a + b

    def fail(self):
        raise KeyError("a")
