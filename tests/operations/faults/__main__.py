"""`python -m tests.operations.faults`."""

from tests.operations.faults.drill import main

if __name__ == "__main__":
    main()
