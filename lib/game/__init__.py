"""Countdown itself: problems, answers and verdicts. The arithmetic is exact, and nothing here needs
torch."""
