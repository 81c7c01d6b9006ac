"""How a policy is made: models, sampling, losses, trainers and search."""
