# One generic rule: a run of papermill_runs.yaml is finished when its run.json is there. lib/runs/plan.py says which have to
# be made, and `make study` gives them to this; by hand:
#   snakemake --cores 2 --forceall --directory data/runs --config profile=cpu runs=sft/free/0,sample/sft_free/0
# With published=1 studies are drawn from the committed results: --directory data/runs/reference.
import os
import sys

root = workflow.basedir
sys.path.insert(0, root)
from lib.runs.machine import PARENT, gpus
from lib.runs.plan import Plan, Project

os.environ[PARENT] = str(os.getpid())
project = Project(root, published=bool(int(config.get("published", 0))))
on_gpus = bool(gpus())  # asked once, and not again for every run
waiting = config["runs"].split(",")
specs = project.specs(config["profile"], *waiting)
plan = Plan({run: specs[run] for run in specs if run in waiting})
made = config["profile"] + "/{run}/run.json"  # below the folder of all runs, whose own name may hold braces


rule all:
    input:
        expand(made, run=waiting),


rule run:
    # ancient: when a parent's record was written is nobody's business, as clocks differ.
    input:
        lambda wildcards: [ancient(made.format(run=run)) for run in specs[wildcards.run].parents if run in plan.specs],
    output:
        made,
    priority: lambda wildcards: plan.heights[wildcards.run]
    threads: lambda wildcards: specs[wildcards.run].declaration.threads
    resources:
        mem_mb=lambda wildcards: specs[wildcards.run].declaration.mem_mb,
        gpu=lambda wildcards: int(on_gpus and not specs[wildcards.run].study),
    params:
        published="--published" if project.published else "",
    # exec: the run must be Snakemake's own child to die with it, even if that is while it starts
    shell:
        "cd {root:q} && exec {sys.executable:q} -m lib.runs run {config[profile]} {wildcards.run} {params.published}"
