"""`python -m tests.operations.soak`."""

from tests.operations.soak.drill import main

if __name__ == "__main__":
    main()
