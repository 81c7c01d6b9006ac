"""How a policy is made: models, sampling, losses, trainers, search."""
