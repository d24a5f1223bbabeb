"""Who may write now, who waits, and what slows down when something cannot keep up."""
