"""What is missing or damaged here, and how it comes back."""
