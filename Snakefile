# One generic rule: a run of papermill_runs.yaml is finished when its run.json is there.
# `make study` starts this with the right options; by hand:
#   snakemake --cores 2 --config profile=laptop group=headline --rerun-triggers params mtime
import os
import sys

sys.path.insert(0, workflow.basedir)
from lib.runs.plan import Project
from lib.runs.process import gpus

project, parent = Project(workflow.basedir), os.getpid()
plan = project.plan(config["profile"], *config["group"].split(","))
made = str(project.runs / config["profile"] / "{run}" / "run.json")


rule all:
    input:
        expand(made, run=plan.targets),


rule run:
    # The notebook file is no input: saving it in JupyterLab would make hours of training again.
    input:
        lambda wildcards: plan.inputs(wildcards.run),
    output:
        made,
    params:
        fingerprint=lambda wildcards: plan.specs[wildcards.run].fingerprint,
    priority: lambda wildcards: plan.height(wildcards.run)
    threads: lambda wildcards: plan.specs[wildcards.run].declaration.threads
    resources:
        mem_mb=lambda wildcards: plan.specs[wildcards.run].declaration.mem_mb,
        gpu=lambda wildcards: int(bool(gpus()) and not plan.specs[wildcards.run].declaration.analysis),
    # exec: the run must be Snakemake's own child to die with it, even if that is while it starts
    shell:
        "exec {sys.executable} -m lib.runs run {config[profile]} {wildcards.run} --parent {parent}"
