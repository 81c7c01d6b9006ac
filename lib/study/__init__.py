"""What saved results say: verdicts, metrics, intervals, claims, figures."""
