"""The world as logboom sees it: small interfaces with one real and one simulated implementation each."""
