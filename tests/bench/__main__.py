"""`make bench`: solver, rewards, generation, search and training, each beside its baseline, one
thread."""

import torch

from tests.bench import bench_generation, bench_rewards, bench_search, bench_solver, bench_training

torch.set_num_threads(1)
for bench in (bench_solver, bench_rewards, bench_generation, bench_search, bench_training):
    bench.main()
    print(flush=True)
