"""Consensus, pure: a core that takes messages, time and storage completions, and gives `Ready`s."""
