"""Second-order matching beside a Gaussian reference and the local facts."""
