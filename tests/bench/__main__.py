"""`make bench`: solver, rewards, generation, search, training and exact success, each beside its
baseline, one thread."""

import torch

from tests.bench import (
    bench_exact,
    bench_generation,
    bench_rewards,
    bench_search,
    bench_solver,
    bench_training,
)

torch.set_num_threads(1)
BENCHES = (
    bench_solver,
    bench_rewards,
    bench_generation,
    bench_search,
    bench_training,
    bench_exact,
)
for bench in BENCHES:
    bench.main()
    print(flush=True)
