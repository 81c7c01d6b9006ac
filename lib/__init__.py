"""Countdown: what should a small language model be rewarded for when it learns to solve arithmetic puzzles?"""
