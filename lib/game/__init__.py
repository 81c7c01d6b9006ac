"""Countdown itself: problems, answers, verdicts. Exact, and without torch."""
