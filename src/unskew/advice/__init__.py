"""Which method to take, by what was measured where labels are skewed alike."""
