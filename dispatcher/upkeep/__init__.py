"""Sets, and what they make superfluous; what is damaged, found and made anew."""
