"""`pgbeat dev` and `pgbeat all`: the whole system in one terminal."""
