"""Many runs: the list, the leaderboard, several of them beside each other."""
